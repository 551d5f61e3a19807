package natsbus

import (
	"fmt"
	"net/url"
	"strings"
)

// checkExternal connects once, so that a wrong address or a too small max_payload is reported at
// the start and not by a failing step.
func (s *Server) checkExternal() error {
	nc, _, err := s.connect("check", nil)
	if err != nil {
		return fmt.Errorf("%w; is a NATS there, and does the URL name its user and password?", err)
	}
	defer nc.Close()
	if most := nc.MaxPayload(); most < maxPayload {
		return fmt.Errorf("%w: the NATS at %s takes messages of at most %d bytes, Shoal sends up to %d: set max_payload: 16MB in its "+
			"configuration",
			ErrConfig, redacted(s.cfg.URL), most, maxPayload)
	}
	return nil
}

// redacted hides the passwords of a list of URLs.
func redacted(list string) string {
	var out []string
	for u := range strings.SplitSeq(list, ",") {
		if p, err := url.Parse(strings.TrimSpace(u)); err == nil {
			u = p.Redacted()
		} else if _, host, ok := strings.Cut(u, "@"); ok {
			u = host
		}
		out = append(out, u)
	}
	return strings.Join(out, ",")
}
