package web_test

import "testing"

// phone: no page is wider than a phone, light or dark, and everything that can be pressed has
// a name.
func phone(t *testing.T, b *browser, _ *cluster) {
	b.size(390, 844)
	value[bool](b, `(document.getElementById("theme").click(), true)`)
	for _, name := range []string{"chat", "cluster", "faults", "jobs"} {
		b.to(name)
		b.fits(name)
		shot(b, "phone-"+name)
		nameless := value[string](b, `[...document.querySelectorAll("button, a, input, textarea, select, [role=img]")].filter(e =>
			!(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label") || document.querySelector('label[for="' + e.id + '"]'))).map(e => e.outerHTML).join()`)
		if nameless != "" {
			t.Errorf("%s has what a screen reader cannot name: %s", name, nameless)
		}
	}
}
