// Keys for people who work here all day. They are deaf while somebody types, and to whatever comes with Ctrl, Alt or Meta.
"use strict";
{
    const GO_SECONDS = 1.5;
    let goUntil = 0;

    const typing = (element) => element.isContentEditable || /^(input|textarea|select)$/i.test(element.tagName) && !/^(checkbox|radio|button|submit)$/.test(element.type);

    function search() {
        const field = document.querySelector("#searchbar") || document.querySelector("#site-search");
        if (field) {
            field.focus();
            field.select();
        }
    }

    function help() {
        const dialog = document.querySelector("#keys");
        if (dialog && !dialog.open) {
            dialog.showModal();
        }
    }

    const KEYS = {
        "/": search,
        "?": help,
        "r": () => document.dispatchEvent(new CustomEvent("live:now")),
        "p": () => document.dispatchEvent(new CustomEvent("live:pause")),
        "g": () => { goUntil = Date.now() + GO_SECONDS * 1000; },
    };

    document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || event.repeat || typing(event.target) || document.querySelector("dialog[open]")) {
            return;
        }
        const target = Date.now() < goUntil && document.querySelector(`#sections [data-key="${CSS.escape(event.key)}"]`);
        goUntil = 0;
        if (target) {
            event.preventDefault();
            target.click();
        } else if (Object.hasOwn(KEYS, event.key)) {
            event.preventDefault();
            KEYS[event.key]();
        }
    });

    document.addEventListener("click", (event) => {
        if (event.target.closest("[data-keys-open]")) {
            help();
        }
    });
}
