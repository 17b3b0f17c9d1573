// How numbers and times are said.

export const byId = (id) => document.getElementById(id);

export const text = (value, digits) => value === null || Number.isNaN(value) ? "no data" : value.toFixed(digits);

export const count = (value) => Math.round(value).toLocaleString("en");

export const when = (at) => new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19);

export function ago(seconds) {
  if (seconds === null) return "never";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at++; }
  return `${value.toFixed(at ? 1 : 0)} ${units[at]}`;
}
