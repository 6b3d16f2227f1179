// The owner of a page's keys: the user, the page's service account, or any owner.

import { $ } from "../dom.js";

const { accountId } = $("[data-account-id]")?.dataset ?? {};

/** True on an administrator's page of any key, which can only show and revoke it. */
export const isAnyones = location.pathname.startsWith("/admin/keys");

/** The query parameters of each request about a service account's keys. */
export const acting = accountId ? { on_behalf_of: accountId } : {};

/** The tasks to which a key of this owner can be limited; the title of a service account's page is its name. */
export const ownTasks = () => accountId && { owner: $("#name").textContent };

/** The API's address of a path under `/keys`. */
export function keysPath(path, query = {}) {
  const words = new URLSearchParams({ ...query, ...acting }).toString();
  const at = `${isAnyones ? "/admin" : ""}/keys${path}`;
  return words ? `${at}?${words}` : at;
}

/** The page of the owner's keys, and that of one of them. */
export const listPage = accountId ? `/admin/service-accounts/${encodeURIComponent(accountId)}` : isAnyones ? "/admin/keys" : "/keys";
export const keyPage = (id) => (accountId ? `${listPage}/keys/${id}` : `${listPage}/${id}`);
