package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync/atomic"
)

// keyring holds hashes of API keys; an empty one lets everyone in.
type keyring struct {
	sums  [][sha256.Size]byte
	busy  []atomic.Int64 // requests under way, by key
	limit int64          // of them; 0: none
}

func newKeyring(keys []string, limit int) *keyring {
	k := &keyring{busy: make([]atomic.Int64, len(keys)), limit: int64(limit)}
	for _, key := range keys {
		k.sums = append(k.sums, sha256.Sum256([]byte(key)))
	}
	return k
}

// find returns the number of the key of a request, in time that depends on no
// key; ok is false when the request may not pass. Without keys everyone may, as
// number -1.
func (k *keyring) find(r *http.Request) (number int, ok bool) {
	if len(k.sums) == 0 {
		return -1, true
	}
	key, ok := presentedKey(r)
	sum := sha256.Sum256([]byte(key))
	number = -1
	for i := range k.sums {
		number = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(k.sums[i][:], sum[:]), i, number)
	}
	return number, ok && number >= 0
}

// enter counts a request of a key; the caller leaves when it ends. It is false
// when the key has as many as it may have.
func (k *keyring) enter(number int) bool {
	if number < 0 || k.limit == 0 {
		return true
	}
	if k.busy[number].Add(1) > k.limit {
		k.busy[number].Add(-1)
		return false
	}
	return true
}

func (k *keyring) leave(number int) {
	if number >= 0 && k.limit > 0 {
		k.busy[number].Add(-1)
	}
}

// presentedKey is the bearer token, or the password of basic authentication,
// which is how a browser sends a key for the status page.
func presentedKey(r *http.Request) (string, bool) {
	if _, password, ok := r.BasicAuth(); ok {
		return password, true
	}
	scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(key), true
}
