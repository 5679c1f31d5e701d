"use strict";
// The calls of openapi.json as people read them. Every word goes into the page as text, never as markup.
const $ = id => document.getElementById(id);
let whole = null;

function put(parent, name, words, attributes = {}) {
  const made = document.createElement(name);
  if (words !== undefined && words !== null) made.textContent = String(words);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}
// The type of a field in a few words, with its limits.
function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return [...new Set(schema.anyOf.map(typeOf))].join(" or ");
  if (schema.enum) return schema.enum.map(x => JSON.stringify(x)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${schema.items ? typeOf(schema.items) : "anything"}` + (schema.maxItems ? `, up to ${schema.maxItems}` : "");
  if (schema.type === "object" && schema.additionalProperties) return `object of ${typeOf(schema.additionalProperties)}`;
  const limits = {minimum: "from", exclusiveMinimum: "above", maximum: "to", maxLength: "up to"};
  const said = Object.entries(limits).filter(([name]) => name in schema && Math.abs(schema[name]) < 1e12).map(([name, words]) => `${words} ${schema[name]}`);
  return [schema.type || "anything", ...said].join(" ") + (schema.maxLength ? " characters" : "");
}

// Words with `names` in them.
function say(parent, name, words, attributes) {
  const made = put(parent, name, null, attributes);
  words.split("`").forEach((part, n) => put(made, n % 2 ? "code" : "span", part));
}

// A message's fields, and those of the messages in it that were not described here before.
function fields(place, title, schema, known) {
  for (const ref of JSON.stringify(schema || {}).match(/#\/components\/schemas\/\w+/g) || []) {
    const name = ref.split("/").pop(), one = whole.components.schemas[name];
    if (known.has(name) || !one.properties) continue;
    known.add(name);
    put(place, "h3", `${title}: ${name}`);
    if (one.description) say(place, "p", one.description, {class: "small"});
    const table = put(place, "table"), head = put(put(table, "thead"), "tr"), body = put(table, "tbody");
    for (const words of ["field", "type", title.startsWith("body") ? "it is" : ""]) put(head, "th", words);
    for (const [field, of] of Object.entries(one.properties)) {
      const row = put(body, "tr"), first = (one.required || []).includes(field) ? "needed" : of.default === undefined || of.default === null ? "" : `default ${JSON.stringify(of.default)}`;
      put(put(row, "td"), "code", field);
      put(row, "td", typeOf(of));
      say(row, "td", [title.startsWith("body") ? first : "", of.description].filter(Boolean).join(". "));
    }
    fields(place, `${title}, in it`, one.properties, known);
  }
}

function show(found) {
  whole = found;
  $("version").textContent = `${found.info.version}, the API`;
  for (const [path, methods] of Object.entries(found.paths)) for (const [method, call] of Object.entries(methods)) {
    const place = put($("calls"), "article", null, {id: path.slice(1)}), head = put(place, "h2");
    put(head, "span", method.toUpperCase() + " ", {class: "method"}); put(head, "code", path);
    put(place, "p", call.summary + (call.security ? " Needs the token, always." : ""));
    const body = call.requestBody && call.requestBody.content["application/json"].schema;
    const curl = ["curl", ...(call.security ? ["-H 'Authorization: Bearer TOKEN'"] : []), ...(body ? ["-H 'Content-Type: application/json'", "-d '{...}'"] : method === "post" ? ["-X POST"] : []), location.origin + path];
    put(place, "pre", curl.join(" "));
    fields(place, "body", body, new Set());
    fields(place, "answer", Object.values(call.responses["200"].content)[0].schema, new Set());
  }
}

const token = sessionStorage.getItem("token") || "";
fetch("openapi.json", {headers: token ? {Authorization: "Bearer " + token} : {}})
  .then(async answer => { const found = await answer.json(); if (!answer.ok) throw new Error(found.error + " Put the token into the field of the live page first."); show(found); })
  .catch(error => { $("problem").hidden = false; $("problem").textContent = error.message; });
