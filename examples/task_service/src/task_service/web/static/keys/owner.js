// Whose keys a page shows: the user's own, those of the service account that the page names, or any owner's.

import { $ } from "../dom.js";

const { accountId } = $("[data-account-id]")?.dataset ?? {};

/** On an administrator's page of any key, who sees and revokes it and nothing else. */
export const isAnyones = location.pathname.startsWith("/admin/keys");

/** What each request about the keys of a service account says besides its own query. */
export const acting = accountId ? { on_behalf_of: accountId } : {};

/** Which tasks a key of this owner can be limited to; the page of a service account has its name as the title. */
export const ownTasks = () => accountId && { owner: $("#name").textContent };

/** The address in the API of what is under `/keys`. */
export function keysPath(path, query = {}) {
  const words = new URLSearchParams({ ...query, ...acting }).toString();
  const at = `${isAnyones ? "/admin" : ""}/keys${path}`;
  return words ? `${at}?${words}` : at;
}

/** The page of the owner's keys, and that of one of them. */
export const listPage = accountId ? `/admin/service-accounts/${encodeURIComponent(accountId)}` : isAnyones ? "/admin/keys" : "/keys";
export const keyPage = (id) => (accountId ? `${listPage}/keys/${id}` : `${listPage}/${id}`);
