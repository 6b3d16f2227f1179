// Whose keys a page shows: the user's own, or those of the service account that the page names.

import { $ } from "../dom.js";

const { accountId } = $("[data-account-id]")?.dataset ?? {};

/** What each request about the keys of a service account says besides its own query. */
export const acting = accountId ? { on_behalf_of: accountId } : {};

/** The address in the API of what is under `/keys`. */
export function keysPath(path, query = {}) {
  const words = new URLSearchParams({ ...query, ...acting }).toString();
  return words ? `/keys${path}?${words}` : `/keys${path}`;
}

/** The page of the owner's keys, and that of one of them. */
export const listPage = accountId ? `/admin/service-accounts/${encodeURIComponent(accountId)}` : "/keys";
export const keyPage = (id) => (accountId ? `${listPage}/keys/${id}` : `/keys/${id}`);
