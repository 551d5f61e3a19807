package hub

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// Range returns bytes [from, to) of a file of the hub, unchecked. origin is ORG/NAME@COMMIT, as
// [layout.Origin] returns it. The caller checks the hash of the bytes.
func (s *Store) Range(ctx context.Context, origin, file string, from, to int64) ([]byte, error) {
	repo, commit, _ := strings.Cut(origin, "@")
	r, err := Parse(repo)
	switch {
	case err != nil || r.Kind != Hub || r.Repo != repo || !commitHash.MatchString(commit):
		return nil, fmt.Errorf("%w: %q is not ORG/NAME@COMMIT of a hub", ErrRef, clean(origin))
	case CheckFileName(file) != nil || from < 0 || to <= from || to-from > maxRange:
		return nil, fmt.Errorf("%w: bytes %d to %d of %q are not part of a file", ErrRef, from, to, clean(file))
	case s.s.Offline:
		return nil, fmt.Errorf("%w: HF_HUB_OFFLINE is set, so %s of %s is not fetched", ErrOffline, file, origin)
	}
	h := &hubAPI{s.c, s.s.Endpoint, s.s.Token}
	body, err := s.c.fetchBody(ctx, maxRange, func() (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.fileURL(repo, commit, file), nil)
		if err == nil {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
		}
		return req, err
	}, h.send)
	if err == nil && int64(len(body)) != to-from {
		err = fmt.Errorf("%w: %s sent %d bytes of %s, where bytes %d to %d were asked for", ErrProtocol,
			s.s.Endpoint, len(body), file, from, to-1)
	}
	return body, err
}

// maxRange bounds the bytes of one Range.
const maxRange = 8 << 20
