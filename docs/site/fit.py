#!/usr/bin/env python3
"""Checks in a browser without a screen that no table of the site is cut.

    docs/site/fit.py SITE [WIDTH]    # the built site, and the width of the page: 1265, a window of 1280 less its scroll bar

Prints each table that is wider than its room, and ends with 1 if there is one. Checks nothing where no browser is installed.
"""

import functools
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

BROWSERS = ("chromium-headless-shell", "chromium")
SECONDS = 300

# Shows one page after the other in a frame of the window's width, and sends back what it found. A table is cut if it or an
# element around it scrolls sideways.
SCRIPT = """
const found = [];
async function check(page) {
  const frame = document.createElement('iframe');
  frame.style.width = WIDTH + 'px';
  const loaded = new Promise(done => { frame.onload = done; });
  frame.src = page;
  document.body.append(frame);
  await loaded;
  for (const table of frame.contentDocument.querySelectorAll('table')) {
    for (let box = table; box; box = box.parentElement) {
      const rest = box.scrollWidth - box.clientWidth;
      if (rest <= 1 || frame.contentWindow.getComputedStyle(box).overflowX === 'visible') continue;
      const text = table.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60);
      found.push(`${page}: ${box.clientWidth + rest} px in ${box.clientWidth} px: ${text}`);
      break;
    }
  }
  frame.remove();
}
(async () => {
  for (const page of PAGES) await check(page);
  await fetch('found', {method: 'POST', body: JSON.stringify(found)});
})();
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and at /fit the page that checks the others."""

    start = b""
    found = None
    answered = threading.Event()

    def do_GET(self):
        if self.path != "/fit":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(Handler.start)

    def do_POST(self):
        Handler.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        Handler.answered.set()

    def log_message(self, *_):
        pass


def tables_cut(browser, site, width):
    """What the script has found of all pages. None: the browser gave no answer."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    names = f"const PAGES = {json.dumps(pages)}, WIDTH = {width};"
    Handler.start = f"<!DOCTYPE html><body><script>{names}{SCRIPT}</script></body>".encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    server.handle_error = lambda *_: None  # the browser leaves without reading all
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The port keeps the browser open until the answer is there. Its own sandbox refuses root.
        process = subprocess.Popen([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                    "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-port=0",
                                    f"http://127.0.0.1:{server.server_port}/fit"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        Handler.answered.wait(SECONDS)
        os.killpg(process.pid, signal.SIGKILL)  # also what a script of this name has started
        process.wait()
    server.shutdown()
    return Handler.found


def main(site, width=1265):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("fit: no browser, so the tables' widths are not checked", file=sys.stderr)
        return 0
    found = tables_cut(browser, pathlib.Path(site).resolve(), int(width))
    if found is None:
        print(f"fit: {browser} gave no answer in {SECONDS} s", file=sys.stderr)
        return 1
    for line in found:
        print(f"fit: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
