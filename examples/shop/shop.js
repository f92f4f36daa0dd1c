// The countdown, the gate's switch, the live figures and the crowd. The shop itself works without any of it.
"use strict";
const by = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");

// The button, and the word above it: when the sale opens, and that it is sold out

const opening = document.querySelector("[data-opens-at]");
const opensAt = opening ? Number(opening.dataset.opensAt) * 1000 : 0;
const buyForm = document.querySelector("form.buy[action='/orders']");
let soldOut = Boolean(by("buy")?.disabled);

// A form that was sent may be sent again after the sale: its answer is the order that it made.
const token = () => buyForm.elements.one_time_token.value;
buyForm?.addEventListener("submit", () => sessionStorage.setItem("sent", token()));
const wasSent = () => sessionStorage.getItem("sent") === token();

function showOpening() {
  const left = Math.ceil((opensAt - Date.now()) / 1000);
  const two = (n) => String(n).padStart(2, "0");
  const clock = `Opens in ${two(Math.floor(left / 3600))}:${two(Math.floor(left / 60) % 60)}:${two(left % 60)}`;
  opening.querySelector("[data-countdown]").textContent = soldOut ? "Sold out" : left > 0 ? clock : "Open now";
  if (buyForm) by("buy").disabled = left > 0 || (soldOut && !wasSent());
  return left > 0;
}

function countDown() {
  if (showOpening()) setTimeout(countDown, 200);
}
if (opening) countDown();

// The gate's switch

const remembered = (name) => new RegExp(`(?:^|; )${name}=(\\w+)`).exec(document.cookie)?.[1];
const remember = (name, value) => { document.cookie = `${name}=${value}; path=/; samesite=lax`; };

function showGate() {
  const gate = remembered("gate") === "off" ? "off" : "on";
  document.documentElement.dataset.gate = gate;
  by("unguarded").hidden = gate === "on";
  by(`gate-${gate}`).checked = true;
}

function turn(gate) {
  remember("gate", gate); // goes along with each purchase
  showGate();
}

by("gate-form").addEventListener("change", (event) => turn(event.target.value));
by("unguarded").addEventListener("submit", (event) => {
  event.preventDefault();
  turn("on");
});
addEventListener("pageshow", showGate); // a page that going back shows may be older than the choice

// The panel

function show(stats) {
  for (const figure of document.querySelectorAll("[data-figure]")) {
    const value = stats[figure.dataset.figure];
    figure.textContent = value === null ? "–" : whole.format(value) + (figure.dataset.unit || "");
  }
  by("degraded").classList.toggle("warn", stats.degraded > 0);
  by("oversold").classList.toggle("bad", stats.oversold > 0);
  showStock(stats);
  by("meter").max = Math.max(1, stats.sold + stats.left);
  by("meter").value = stats.sold;
  showRedis(stats.redis === "up", stats.redis);
  by("workers").replaceChildren(...stats.workers.map(worker));
  tell(stats.events);
}

function showStock({left, oversold}) {
  const is = {oversold: oversold > 0, "sold-out": left === 0};
  for (const part of document.querySelectorAll("[data-if]")) part.hidden = !is[part.dataset.if];
  soldOut = left === 0;
  if (opening) showOpening();
}

function showRedis(up, state) {
  const text = up ? "Redis is up" : state === "down" ? "Redis is down" : state;
  if (by("redis-state").textContent !== text) by("redis-state").textContent = text;
  by("redis-dot").className = up ? "dot up" : "dot down";
  by("stop-redis").disabled = !up;
  by("start-redis").disabled = up;
}

function worker({number, breaker}) {
  const item = document.createElement("li");
  item.className = breaker;
  item.textContent = `Worker ${number}: breaker ${breaker.replace("_", " ")}`;
  return item;
}

// Adds what is new on top: a log that were written anew would be read out anew.
function tell(events) {
  const list = by("events");
  const known = new Set(Array.from(list.children, (item) => item.dataset.key));
  const fresh = events.map(said).filter((item) => !known.has(item.dataset.key));
  if (!fresh.length) return;
  list.querySelector(".empty")?.remove();
  list.prepend(...fresh);
  while (list.children.length > 6) list.lastChild.remove();
}

function said({at, worker, text}) {
  const item = document.createElement("li");
  const words = [["span", new Date(at * 1000).toLocaleTimeString("en-GB")], ["span", `Worker ${worker}`], ["b", text]];
  item.dataset.key = `${at} ${worker}`;
  item.append(...words.map(([tag, content]) => Object.assign(document.createElement(tag), {textContent: content})));
  return item;
}

let shown = "";
async function poll() {
  try {
    const answer = await fetch("/stats", {cache: "no-store"});
    const text = await answer.text();
    if (answer.ok && text !== shown) { show(JSON.parse(text)); shown = text; }
  } catch {
    by("redis-state").textContent = "The shop does not answer";
    by("redis-dot").className = "dot down";
    shown = "";
  }
}
async function watch() {
  await poll();
  setTimeout(watch, 500);
}
watch();

// Its buttons

const post = (url, data) => fetch(url, {method: "POST", body: new URLSearchParams(data), redirect: "manual"});

by("redis-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  event.submitter.disabled = true;
  await post("/redis", {do: event.submitter.value});
  poll();
});

const outage = by(`outage-${remembered("outage")}`);
if (outage) outage.checked = true;
by("outage-form").addEventListener("change", (event) => remember("outage", event.target.value));

by("crowd-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  await post("/restock", {});
  poll();
});

// The crowd: each answer falls into the box that the shop's own header names

const boxes = Object.fromEntries(Array.from(document.querySelectorAll("[data-box]"), (box) => [box.dataset.box, box]));
const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);

by("send-crowd").addEventListener("click", async () => {
  const size = Math.min(2000, Math.max(1, Math.floor(Number(by("crowd-size").value)) || 1));
  const crowd = {name: `crowd-${crypto.randomUUID().slice(0, 8)}`, size, sent: 0, next: 0, answers: {}};
  by("send-crowd").disabled = true;
  by("crowd-said").textContent = `${whole.format(size)} buyers are clicking …`;
  await Promise.all(Array.from({length: 4}, () => lane(crowd)));
  const answers = sum(crowd.answers);
  const missing = crowd.sent - answers;
  by("crowd-said").textContent = `${whole.format(crowd.sent)} requests sent, ${whole.format(answers)} in the boxes: `
    + (missing ? `${whole.format(missing)} are missing.` : "it adds up.");
  by("send-crowd").disabled = false;
  poll();
});

async function lane(crowd) {
  while (crowd.next < crowd.size) {
    const order = orderOf(`${crowd.name}-${crowd.next++}`);
    for (const box of await Promise.all([click(crowd, order), click(crowd, order), click(crowd, order)])) {
      if (box in boxes) crowd.answers[box] = (crowd.answers[box] || 0) + 1; // else the sum says that it is missing
    }
    for (const [name, box] of Object.entries(boxes)) box.textContent = whole.format(crowd.answers[name] || 0);
  }
}

const orderOf = (buyer) => ({
  method: "POST",
  headers: {"Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID(), "X-Buyer": buyer},
  body: JSON.stringify({quantity: 1}),
});

function click(crowd, order) {
  crowd.sent += 1;
  return fetch("/api/orders", order).then((answer) => answer.headers.get("Shop-Answer"), () => "none");
}
