package admin

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// The page is plain HTML, style sheets and modules, served unchanged from web; web/vendor holds
// third-party files (docs/dependencies.md).
//
//go:embed web
var pageFiles embed.FS

// pagePolicy allows scripts, styles and requests of this server only. No script may turn text into
// HTML, so that a model's output stays text even if the page has a bug.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'" +
	"; require-trusted-types-for 'script'; trusted-types 'none'"

// handlePage answers / and the files below /web/.
func (s *API) handlePage(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" {
		name = "web/index.html"
	}
	body, err := pageFiles.ReadFile(name)
	if err != nil {
		s.http.Fail(w, &apierr.Error{Status: http.StatusNotFound, Type: apierr.TypeInvalid, Code: "unknown_url",
			Message: "The page has no such file."}, false)
		return
	}
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // asked for each time, and sent when it has changed
	h.Set("Etag", tag)
	s.http.Deadline(w)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", pageType(name))
	_, _ = w.Write(body)
}

// pageType does not use the system's table of types, which differs between machines.
func pageType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	}
	return "text/plain; charset=utf-8"
}

// handleRoot is the page for browsers. Ollama's clients look here whether a server runs.
func (s *API) handleRoot(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept")
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.handlePage(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s.http.Deadline(w)
	_, _ = io.WriteString(w, "Ollama is running")
}
