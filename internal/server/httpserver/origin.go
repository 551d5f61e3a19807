package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// A request that a browser sends for a page of another origin is refused. A page may post
// some content types without a preflight, and may have its own name resolve to this address
// (DNS rebinding). Other programs send neither Origin nor Sec-Fetch-Site.

// fromBrowser reports whether a browser sent the request: every browser sends Origin with a
// POST, or Sec-Fetch-Site, and no page can leave them out.
func fromBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}

func notJSON() *apierr.Error {
	return &apierr.Error{Status: http.StatusUnsupportedMediaType, Type: apierr.TypeInvalid, Code: "unsupported_media_type",
		Message: "A browser must send this request with Content-Type: application/json."}
}

// foreign returns the error of a request that a page of another origin sent, or nil.
func (s *Server) foreign(r *http.Request, route *Route) *apierr.Error {
	refuse := func(code, why string) *apierr.Error {
		return &apierr.Error{Status: http.StatusForbidden, Type: apierr.TypePermission, Code: code,
			Message: why + " To allow it, start the server with " + options.Name("allow-origin") + "."}
	}
	if origin := r.Header.Get("Origin"); origin != "" && !s.allows(origin) {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return refuse("origin_not_allowed", "Web pages of other origins may not use this API.")
		}
	}
	// A page that has a key was given it. Without keys, only the name in the address bar
	// distinguishes it from the server's own page.
	if len(*s.keys.Load()) == 0 && !s.ours(r.Host) {
		return refuse("host_not_allowed", "Without API keys this server answers to IP addresses and localhost alone.")
	}
	if changes := r.Method != http.MethodGet && r.Method != http.MethodHead; changes && fromBrowser(r) {
		// Old browsers leave Origin out of some requests; then only Sec-Fetch-Site is there.
		if site := r.Header.Get("Sec-Fetch-Site"); r.Header.Get("Origin") == "" && (site == "cross-site" || site == "same-site") {
			return refuse("origin_not_allowed", "Web pages of other origins may not use this API.")
		}
		switch t := mediaType(r.Header.Get("Content-Type")); {
		case t == "text/plain", t == "application/x-www-form-urlencoded", strings.HasPrefix(t, "multipart/") && (route == nil || !route.Uploads):
			return notJSON()
		}
	}
	return nil
}

// allows reports whether the operator lets pages of an origin use the API.
func (s *Server) allows(origin string) bool {
	return slices.ContainsFunc(s.cfg.AllowOrigins, func(o string) bool { return o == "*" || strings.EqualFold(o, origin) })
}

// ours reports whether a Host names this server: an address, localhost, or an origin's host.
func (s *Server) ours(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	return slices.ContainsFunc(s.cfg.AllowOrigins, func(o string) bool {
		u, err := url.Parse(o)
		return err == nil && u.Hostname() != "" && strings.EqualFold(u.Hostname(), name)
	})
}

// exposed lists the headers of answers that a page of an allowed origin may read.
const exposed = "Idempotency-Replayed, Location, Retry-After, Retry-After-Ms, X-Ignored-Parameters, X-Request-Id, X-Should-Retry"

// cors lets a page of an allowed origin read the answer. It reports whether the request is a
// preflight. The answer permits all requested headers: the operator trusts the origin already.
func (s *Server) cors(h http.Header, r *http.Request) (preflight bool) {
	if len(s.cfg.AllowOrigins) > 0 {
		h.Add("Vary", "Origin")
	}
	origin := r.Header.Get("Origin")
	if origin == "" || !s.allows(origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposed)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
	if requested := r.Header.Values("Access-Control-Request-Headers"); len(requested) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(requested, ", "))
	}
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h.Set("Access-Control-Max-Age", "600")
	return true
}

// CheckOrigins returns the first value that is not an origin, and false.
func CheckOrigins(origins []string) (bad string, ok bool) {
	for _, o := range origins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != o) {
			return o, false
		}
	}
	return "", true
}
