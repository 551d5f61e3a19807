package hub

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Kinds of failure, for errors.Is. The text of an error has advice for the user.
var (
	ErrNotFound    = errors.New("hub: not found")             // no such repository, revision or file
	ErrGated       = errors.New("hub: access is not granted") // the licence is not accepted, or the token is wrong
	ErrOffline     = errors.New("hub: offline")               // HF_HUB_OFFLINE is set and the model is not here
	ErrNotCached   = errors.New("hub: not on this machine")   // a model that was not pulled
	ErrIncomplete  = errors.New("hub: incomplete repository") // a file is missing that another one names
	ErrAmbiguous   = errors.New("hub: several models")        // a repository has several GGUF files
	ErrUnsupported = errors.New("hub: no usable weights")     // neither safetensors nor GGUF
	ErrSpace       = errors.New("hub: not enough disk space")
	ErrPermission  = errors.New("hub: no permission")             // to write the cache
	ErrDamaged     = errors.New("hub: wrong content")             // the hash does not match, twice
	ErrUnreachable = errors.New("hub: no answer")                 // connection, time-out, certificate, 5xx
	ErrProtocol    = errors.New("hub: unexpected answer")         // the answer is not that of a hub
	ErrBusy        = errors.New("hub: in use by another process") // it holds the lock
)

// Limits of a server's answers.
const (
	maxListing   = 32 << 20 // bytes of a repository's list of files
	maxFiles     = 50_000   // files of a repository
	maxFileBytes = 4 << 40  // of one file
	maxManifest  = 4 << 20  // bytes of a manifest, a token or an error
)

var errTooLong = errors.New("more bytes than the limit")

// readAtMost reads all of r, and refuses more than limit bytes.
func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%w of %d", errTooLong, limit)
	}
	return b, err
}

// listed writes names for an error, at most n of them.
func listed(names []string, n int) string {
	var more string
	if len(names) > n {
		more = fmt.Sprintf("\n  and %d more", len(names)-n)
		names = names[:n]
	}
	return "\n  " + strings.Join(names, "\n  ") + more
}
