"""What can be measured of a page's looks: contrast, width, names of controls, and where things are."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page

_CONTRAST = """() => {
    const numbers = (color) => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number)
        .map((value, at) => color.startsWith("color(srgb") && at < 3 ? value * 255 : value);
    const over = (top, under) => {
        const alpha = top[3] ?? 1;
        return [0, 1, 2].map((at) => top[at] * alpha + under[at] * (1 - alpha));
    };
    const ground = (element) => {
        if (!element) return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
        return over(numbers(getComputedStyle(element).backgroundColor), ground(element.parentElement));
    };
    const light = (color) => {
        const [r, g, b] = color.map((value) => value / 255)
            .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
        const style = getComputedStyle(element);
        if (!text || element.closest("svg, noscript, .hidden, .skip") || !element.checkVisibility()) continue;
        if (element.closest(".quiet:disabled")) continue; // a button that is off is pale by design
        const behind = ground(element);
        const pair = [light(over(numbers(style.color), behind)), light(behind)].sort((a, b) => b - a);
        const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 600;
        const wanted = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
        found.push({text: text.slice(0, 40), ratio: (pair[0] + 0.05) / (pair[1] + 0.05), wanted});
    }
    return found;
}"""

_NAMELESS = """() => Array.from(document.querySelectorAll("button, input:not([type=hidden]), a, progress"))
    .filter((control) => control.checkVisibility())
    .filter((control) => !(control.ariaLabel || control.innerText?.trim()
        || Array.from(control.labels || []).some((label) => label.textContent.trim())))
    .map((control) => control.outerHTML)"""

_SMALL = """() => Array.from(document.querySelectorAll("button, input[name=name], input[type=number], [for^=gate]"))
    .filter((control) => control.checkVisibility())
    .filter((control) => Math.min(control.offsetWidth, control.offsetHeight) < 24)
    .map((control) => control.outerHTML)"""

_BEYOND = """() => {
    const inline = new Set(["INPUT", "SPAN", "B", "STRONG", "SMALL", "A", "S"]);
    return Array.from(document.body.querySelectorAll("*"))
    .filter((element) => element.checkVisibility() && !element.closest("svg, .hidden, .skip"))
    .filter((element) => {
        const box = element.getBoundingClientRect();
        const spills = element.scrollWidth > element.clientWidth + 1 && !inline.has(element.tagName);
        return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5 || spills);
    })
    .map((element) => element.outerHTML.slice(0, 120));
}"""


def pale_texts(page: Page) -> list[dict[str, Any]]:
    """Return the visible texts that WCAG's level AA calls too pale: below 4.5 to 1, large ones below 3 to 1."""
    texts = page.evaluate(_CONTRAST)
    assert len(texts) > 10
    return [text for text in texts if text["ratio"] < text["wanted"]]


def nameless_controls(page: Page) -> list[str]:
    """Return the visible controls that a screen reader has no name for."""
    return list(page.evaluate(_NAMELESS))


def small_controls(page: Page) -> list[str]:
    """Return the visible controls that WCAG's level AA calls too small for a finger: below 24 pixels."""
    return list(page.evaluate(_SMALL))


def too_wide(page: Page) -> list[str]:
    """Return the elements that the screen cuts off; empty where nothing scrolls sideways."""
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    return list(page.evaluate(_BEYOND))


def brightness(page: Page) -> float:
    """Return how bright the page's ground is, from 0 to 255."""
    color = page.evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    return float(sum(color) / 3)


def seen_together(page: Page, *parts: Locator) -> bool:
    """Whether all parts are on the screen at the same time, whole."""
    size = page.viewport_size
    assert size
    boxes = [part.bounding_box() for part in parts]
    return all(box and box["y"] >= 0 and box["y"] + box["height"] <= size["height"] for box in boxes)
