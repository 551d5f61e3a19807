package api

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

//go:embed page.html
var page string

// pagePolicy allows the page's own script and style by hash, requests to this
// server, and nothing else.
var pagePolicy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
	"; script-src '" + hashOf(page, "<script>", "</script>") + "'; style-src '" + hashOf(page, "<style>", "</style>") + "'"

func hashOf(doc, open, end string) string {
	_, rest, _ := strings.Cut(doc, open)
	inner, _, _ := strings.Cut(rest, end)
	sum := sha256.Sum256([]byte(inner))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func (s *Server) handlePage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	s.deadline(w)
	_, _ = w.Write([]byte(page))
}
