package web_test

import "testing"

// phone: no page is wider than a phone, in light and dark mode, and every control has a name.
func phone(t *testing.T, b *browser, _ *cluster) {
	b.size(390, 844)
	value[bool](b, `(document.getElementById("theme").click(), true)`)
	for _, name := range []string{"chat", "cluster", "faults", "jobs"} {
		b.to(name)
		b.fits(name)
		shot(b, "phone-"+name)
		if name == "jobs" {
			b.until(`document.querySelectorAll("[data-job]").length > 0`)
			if hidden := value[string](b, `[...document.querySelectorAll("[data-job] td:is(:first-child, :nth-child(2), :last-child) > *")].filter(e => {
				const box = e.getBoundingClientRect();
				return box.width < 20 || box.left < 0 || box.right > innerWidth || box.right > e.closest("td").getBoundingClientRect().right + 1;
			}).map(e => e.outerHTML).join()`); hidden != "" {
				t.Errorf("the list of jobs hides %s", hidden)
			}
		}
		nameless := value[string](b, `[...document.querySelectorAll("button, a, input, textarea, select, [role=img]")].filter(e =>
			!(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label") || document.querySelector('label[for="' + e.id + '"]'))).map(e => e.outerHTML).join()`)
		if nameless != "" {
			t.Errorf("%s has controls without a name for screen readers: %s", name, nameless)
		}
	}
}
