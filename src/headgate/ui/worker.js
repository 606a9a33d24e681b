// Holds the one line of this browser, for all its tabs.

import { Connection } from "./connection.js";

const ports = new Set();
let connection = null;

self.addEventListener("connect", (event) => {
  const [port] = event.ports;
  ports.add(port);
  connection ??= new Connection((message) => {
    for (const one of ports) one.postMessage(message);
  });
  port.addEventListener("message", ({ data }) => {
    if (data === "leave") ports.delete(port);
    else if (data === "hurry") connection.hurry();
    else if (data === "again") connection.again();
  });
  port.start();
  for (const message of connection.soFar()) port.postMessage(message);
});
