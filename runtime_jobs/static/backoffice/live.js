// Keeps <div id="live" data-live-seconds="10"> fresh: reads the page again and puts the new children in place of those that changed.
// It never reloads the page, and leaves alone whoever has ticked, opened, selected or is typing something in there.
"use strict";
{
    const STORED = "backoffice.live.paused";
    const region = document.querySelector("#live[data-live-seconds]");
    const bar = document.querySelector("[data-live-bar]");
    if (region && bar) {
        start(region, bar);
    }

    function start(region, bar) {
        const seconds = Math.max(2, Number(region.dataset.liveSeconds) || 10);
        const state = bar.querySelector("[data-live-state]");
        const button = bar.querySelector("[data-live-pause]");
        let paused = localStorage.getItem(STORED) === "1";
        let timer = null;
        let asking = null;

        const say = (what) => {
            const text = state.dataset[`text${what[0].toUpperCase()}${what.slice(1)}`];
            if (state.textContent !== text) {
                state.textContent = text;
            }
            bar.dataset.liveIs = what;
        };

        function show() {
            button.setAttribute("aria-pressed", String(paused));
            button.textContent = paused ? button.dataset.textOff : button.dataset.textOn;
            say(paused ? "off" : "on");
        }

        function plan() {
            clearTimeout(timer);
            if (!paused && !document.hidden) {
                timer = setTimeout(() => refresh(false), seconds * 1000);
            }
        }

        async function refresh(wanted) {
            if (!wanted && busy(region)) {
                say("waiting");
                plan();
                return;
            }
            if (asking) {
                asking.abort();
            }
            const mine = asking = new AbortController();
            try {
                const answer = await fetch(location.href, {signal: mine.signal, credentials: "same-origin", headers: {"X-Live": "1"}});
                if (answer.redirected || !answer.ok) {
                    throw new Error(String(answer.status));
                }
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                const fresh = page.querySelector("#live");
                // What happened while the answer was on its way counts too.
                if (fresh && (wanted || !busy(region))) {
                    replaceChanged(region, fresh);
                    document.dispatchEvent(new CustomEvent("live:refreshed"));
                }
                show();
            } catch (error) {
                if (error.name === "AbortError") {
                    return;
                }
                say("lost");
            }
            plan();
        }

        function pause() {
            paused = !paused;
            localStorage.setItem(STORED, paused ? "1" : "0");
            show();
            if (!paused) {
                refresh(false);
            } else {
                clearTimeout(timer);
            }
        }

        button.addEventListener("click", pause);
        bar.querySelector("[data-live-now]").addEventListener("click", () => refresh(true));
        document.addEventListener("live:now", () => refresh(true));
        document.addEventListener("live:pause", pause);
        document.addEventListener("visibilitychange", () => {
            if (document.hidden) {
                clearTimeout(timer);
            } else if (!paused) {
                refresh(false);
            }
        });
        bar.hidden = false;
        show();
        plan();
    }

    function busy(region) {
        if (document.querySelector("dialog[open]") || region.querySelector("input[type=checkbox]:checked, details[open]")) {
            return true;
        }
        const active = document.activeElement;
        if (region.contains(active) && /^(input|textarea|select)$/i.test(active.tagName)) {
            return true;
        }
        const selection = getSelection();
        return !selection.isCollapsed && region.contains(selection.anchorNode);
    }

    // Child by child, so that what has not changed keeps its place, its focus and its hover.
    function replaceChanged(old, fresh) {
        if (old.isEqualNode(fresh)) {
            return;
        }
        const sameShape = old.nodeType === Node.ELEMENT_NODE && fresh.nodeType === Node.ELEMENT_NODE && old.tagName === fresh.tagName
            && old.id === fresh.id && old.children.length === fresh.children.length && old.children.length > 0 && old.namespaceURI === fresh.namespaceURI
            && old.childNodes.length === fresh.childNodes.length;
        if (sameShape) {
            for (const {name} of [...old.attributes]) {
                if (!fresh.hasAttribute(name)) {
                    old.removeAttribute(name);
                }
            }
            for (const {name, value} of fresh.attributes) {
                if (old.getAttribute(name) !== value) {
                    old.setAttribute(name, value);
                }
            }
            const children = [...fresh.childNodes];
            [...old.childNodes].forEach((child, index) => replaceChanged(child, children[index]));
            return;
        }
        if (old.id === "live") {
            const focused = focusKey(old);
            old.replaceChildren(...[...fresh.childNodes].map((child) => document.importNode(child, true)));
            restoreFocus(old, focused);
            return;
        }
        const focused = focusKey(old);
        const made = document.importNode(fresh, true);
        old.replaceWith(made);
        restoreFocus(made, focused);
    }

    // A link or button is found again by its id or where it leads.
    function focusKey(inside) {
        const active = document.activeElement;
        if (!inside.contains || !inside.contains(active) || active === document.body) {
            return null;
        }
        return active.id ? `#${CSS.escape(active.id)}` : active.getAttribute("href") ? `[href="${CSS.escape(active.getAttribute("href"))}"]` : null;
    }

    function restoreFocus(inside, key) {
        if (key && inside.querySelector) {
            const found = inside.matches(key) ? inside : inside.querySelector(key);
            if (found) {
                found.focus({preventScroll: true});
            }
        }
    }
}
