package httpserver

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// Roles of a key.
const (
	RoleUser     = "user"     // asks the model, and has jobs
	RoleOperator = "operator" // also moves the work of nodes
)

// Key is an API key with its role and limits. A limit of 0 means no limit.
type Key struct {
	Name            string `json:"name"`              // in logs, so not the secret
	Secret          string `json:"key"`               // sent by the client, or
	SHA256          string `json:"sha256"`            // its SHA-256 in hexadecimal
	Role            string `json:"role"`              // user by default
	Requests        int    `json:"requests"`          // POST requests under way at once
	TokensPerMinute int    `json:"tokens_per_minute"` // of prompts and answers
	Priority        int    `json:"priority"`          // added to that of its requests; lower is sooner
}

// OperatorKeys makes keys without limits, named key-1, key-2 and so on.
func OperatorKeys(secrets ...string) []Key {
	var out []Key
	for i, s := range secrets {
		out = append(out, Key{Name: "key-" + strconv.Itoa(i+1), Secret: s, Role: RoleOperator})
	}
	return out
}

// maxKeys bounds the keys of one server: each request is compared with all of them.
const maxKeys = 10_000

// ParseKeys reads {"keys": [...]}, every member of which is known and in range.
func ParseKeys(text []byte) ([]Key, error) {
	var file struct {
		Keys []Key `json:"keys"`
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf(`httpserver: keys: want {"keys": [{"name": "...", "key": "..."}]}: %w`, err)
	}
	if d.More() {
		return nil, errors.New("httpserver: keys: remove what follows the JSON object")
	}
	if len(file.Keys) == 0 {
		return nil, errors.New(`httpserver: keys: the list is empty: want {"keys": [{"name": "...", "key": "..."}]}`)
	}
	_, err := newKeyring(file.Keys, nil)
	return file.Keys, err
}

// Principal is a key and its use so far.
type Principal struct {
	Key
	sum [sha256.Size]byte
	use *keyUse // the same after a reload
}

// keyUse counts the running requests and the tokens of a key.
type keyUse struct {
	requests atomic.Int64
	mu       sync.Mutex
	left     float64   // tokens of this minute; below 0 when an answer was longer
	at       time.Time // of left; zero: a full minute
}

// keyring holds the keys. If it is empty, requests need no key.
type keyring []*Principal

// anonymous is the principal of every request to a server without keys.
var anonymous = &Principal{Key: Key{Role: RoleOperator}}

// newKeyring checks keys. Keys that old has too keep their use.
func newKeyring(keys []Key, old keyring) (keyring, error) {
	if len(keys) > maxKeys {
		return nil, fmt.Errorf("httpserver: keys: the list has %d keys, at most %d are possible", len(keys), maxKeys)
	}
	out, names, sums := make(keyring, 0, len(keys)), map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i, k := range keys {
		h := &Principal{Key: k, use: &keyUse{}}
		bad := func(format string, args ...any) (keyring, error) {
			return nil, fmt.Errorf("httpserver: key %d of %d (%.40q): %s", i+1, len(keys), k.Name, fmt.Sprintf(format, args...))
		}
		h.Role = cmp.Or(h.Role, RoleUser)
		h.Secret, h.SHA256 = "", ""
		switch b, err := hex.DecodeString(k.SHA256); {
		case k.Name == "" || len(k.Name) > 64:
			return bad("its name must have 1 to 64 bytes")
		case names[k.Name]:
			return bad("another key has this name")
		case (k.Secret == "") == (k.SHA256 == ""):
			return bad("give either key or sha256")
		case k.Secret != "" && strings.TrimSpace(k.Secret) != k.Secret:
			return bad("the key begins or ends with a space, which a client cannot send")
		case k.SHA256 != "" && (err != nil || len(b) != sha256.Size):
			return bad("sha256 is not 64 hexadecimal digits")
		case h.Role != RoleUser && h.Role != RoleOperator:
			return bad("its role is %.20q; known are %s and %s", h.Role, RoleUser, RoleOperator)
		case k.Requests < 0 || k.TokensPerMinute < 0:
			return bad("requests is %d and tokens_per_minute %d: want 0, which is no limit, or more", k.Requests, k.TokensPerMinute)
		case k.Priority < -500 || k.Priority > 500:
			return bad("its priority is %d: want -500 to 500", k.Priority)
		case k.SHA256 != "":
			h.sum = [sha256.Size]byte(b)
		default:
			h.sum = sha256.Sum256([]byte(k.Secret))
		}
		if sums[h.sum] {
			return bad("an earlier name has the same key: give each name its own")
		}
		names[k.Name], sums[h.sum] = true, true
		for _, o := range old {
			if o.sum == h.sum {
				h.use = o.use
			}
		}
		out = append(out, h)
	}
	return out, nil
}

// find returns the principal of a request, or nil if its key is unknown. It takes constant time.
func (k keyring) find(r *http.Request) *Principal {
	if len(k) == 0 {
		return anonymous
	}
	key, sent := presentedKey(r)
	sum := sha256.Sum256([]byte(key))
	number := -1
	for i, h := range k {
		number = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(h.sum[:], sum[:]), i, number)
	}
	if !sent || number < 0 {
		return nil
	}
	return k[number]
}

// acquire counts a request, which must be released. The error is a 429.
func (h *Principal) acquire() *apierr.Error {
	if h.use != nil && h.use.requests.Add(1) > int64(h.Requests) && h.Requests > 0 {
		h.use.requests.Add(-1)
		return limited(fmt.Sprintf("This API key may have %d requests at once: send this one when another has ended.", h.Requests), time.Second)
	}
	return nil
}

func (h *Principal) release() {
	if h.use != nil {
		h.use.requests.Add(-1)
	}
}

// Charge takes tokens from the minute's budget, which refills evenly.
func (h *Principal) Charge(tokens int, now time.Time) {
	if h.TokensPerMinute == 0 {
		return
	}
	h.use.mu.Lock()
	defer h.use.mu.Unlock()
	h.use.refill(float64(h.TokensPerMinute), now)
	h.use.left -= float64(tokens)
}

// CheckTokens returns nil while the minute's budget has tokens. An answer may take more than are
// left; then the next request waits longer.
func (h *Principal) CheckTokens(now time.Time) *apierr.Error {
	if h.TokensPerMinute == 0 {
		return nil
	}
	h.use.mu.Lock()
	defer h.use.mu.Unlock()
	perMinute := float64(h.TokensPerMinute)
	h.use.refill(perMinute, now)
	if h.use.left >= 1 {
		return nil
	}
	wait := time.Duration((1 - h.use.left) / perMinute * float64(time.Minute))
	return limited(fmt.Sprintf("This API key has used its %d tokens a minute.", h.TokensPerMinute), wait+time.Millisecond)
}

func (u *keyUse) refill(perMinute float64, now time.Time) {
	switch {
	case u.at.IsZero():
		u.left = perMinute
	default:
		u.left = min(perMinute, u.left+perMinute*now.Sub(u.at).Minutes())
	}
	u.at = now
}

// Order returns the priority of a request that has one. A user's request is never sooner than the
// priority of its key.
func (h *Principal) Order(requested int) int {
	if h.Role != RoleOperator {
		requested = max(requested, 0)
	}
	return min(max(requested+h.Priority, -1000), 1000)
}

func limited(message string, after time.Duration) *apierr.Error {
	return &apierr.Error{Status: http.StatusTooManyRequests, Type: apierr.TypeRateLimit, Code: "rate_limit_exceeded",
		Message: message, RetryAfter: after}
}

// SetKeys replaces the keys, also while the server runs. Running requests continue, and count
// against their key if it is still there. A server with keys needs at least one.
func (s *Server) SetKeys(keys []Key) error {
	old := *s.keys.Load()
	if len(old) > 0 && len(keys) == 0 {
		return errors.New("httpserver: keys: the new list is empty, which would open the API to everyone: give at least one key")
	}
	ring, err := newKeyring(keys, old)
	if err != nil {
		return err
	}
	s.keys.Store(&ring)
	return nil
}

// presentedKey returns the bearer token, Anthropic's x-api-key, or the password of basic
// authentication, which is how a browser sends a key for the status page.
func presentedKey(r *http.Request) (string, bool) {
	if key := r.Header.Get("X-Api-Key"); key != "" && r.Header.Get("Authorization") == "" {
		return strings.TrimSpace(key), true
	}
	if _, password, ok := r.BasicAuth(); ok {
		return password, true
	}
	scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(key), true
}

// HasKeys reports whether requests need a key.
func (s *Server) HasKeys() bool { return len(*s.keys.Load()) > 0 }
