package natsbus

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/shoal-llm/shoal/collective"
)

// users are the logins of one embedded server. Each connection that this process opens has one: a
// random token that never leaves the process, with exactly the permissions that the connection needs.
// Ranks of other processes use a ticket, to subscribe to the messages of this process for them. Only
// holders of the mesh's secret can write tickets. A ticket answers one nonce of one listener, so
// without TLS a process on the port of an ended server gets no login that it can use again. Logins are
// tokens rather than user names because a reload (AddRoute) closes clients whose user name is not in
// the server's own list.
type users struct {
	cluster string
	secrets func() []string // accepted secrets, the current one first
	addr    func() string   // of the listener; nil: no tickets

	mu       sync.Mutex
	byToken  map[string]*server.User
	admitted map[string]admitted // by nonce, for reloads: a secret that a peer logged in with may have changed since
	nonces   []string            // of admitted, oldest first
}

// admitted is a connection that was let in by a ticket.
type admitted struct {
	ticket      string
	permissions *server.Permissions
}

// keptNonces bounds users.admitted. The newest connections are those of the newest epochs.
const keptNonces = 4 * collective.MaxRanks

func newUsers(cluster string, secrets func() []string, addr func() string) *users {
	return &users{cluster: cluster, secrets: secrets, addr: addr, byToken: map[string]*server.User{}, admitted: map[string]admitted{}}
}

const ticketWord = "hear"

// ticket returns the login of one rank at another's server, which listens at addr and has sent nonce:
// hear.<group>.<epoch>.<rank>.<HMAC-SHA256 with the mesh's secret, hex>.
func (u *users) ticket(group string, epoch uint32, rank int, nonce, addr string) string {
	return u.sign(u.secrets()[0], group, epoch, rank, nonce, addr)
}

func (u *users) sign(secret, group string, epoch uint32, rank int, nonce, addr string) string {
	what := fmt.Sprintf("%s.%s.%d.%d", ticketWord, group, epoch, rank)
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "shoal tensors %s %s %s %s", u.cluster, what, nonce, addr)
	return what + "." + hex.EncodeToString(mac.Sum(nil))
}

// admit returns the permissions that a ticket for a nonce grants, or nil.
func (u *users) admit(ticket, nonce string) *server.Permissions {
	part := strings.Split(ticket, ".")
	if u.addr == nil || nonce == "" || len(part) != 5 || part[0] != ticketWord || !isToken(part[1]) {
		return nil
	}
	epoch, err := strconv.ParseUint(part[2], 10, 32)
	if err != nil {
		return nil
	}
	rank, err := strconv.ParseUint(part[3], 10, 16)
	if err != nil {
		return nil
	}
	if !slices.ContainsFunc(u.secrets(), func(secret string) bool {
		return hmac.Equal([]byte(ticket), []byte(u.sign(secret, part[1], uint32(epoch), int(rank), nonce, u.addr())))
	}) {
		return nil
	}
	return subscribePermissions(newSubjects(u.cluster, part[1], uint32(epoch), int(rank)))
}

// admitOnce is admit, or returns the permissions of a connection that was admitted before: a server has another nonce for
// each connection.
func (u *users) admitOnce(ticket, nonce string) *server.Permissions {
	u.mu.Lock()
	before, known := u.admitted[nonce]
	u.mu.Unlock()
	if known && hmac.Equal([]byte(before.ticket), []byte(ticket)) {
		return before.permissions
	}
	p := u.admit(ticket, nonce)
	if p == nil || known {
		return p
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.nonces) == keptNonces {
		delete(u.admitted, u.nonces[0])
		u.nonces = append(u.nonces[:0], u.nonces[1:]...)
	}
	u.nonces, u.admitted[nonce] = append(u.nonces, nonce), admitted{ticket, p}
	return p
}

// mint creates a login; drop revokes it.
func (u *users) mint(as *server.User) (token string) {
	var secret [24]byte
	rand.Read(secret[:])
	token = hex.EncodeToString(secret[:])
	u.mu.Lock()
	u.byToken[token] = as
	u.mu.Unlock()
	return token
}

func (u *users) drop(token string) {
	u.mu.Lock()
	delete(u.byToken, token)
	u.mu.Unlock()
}

// Check implements server.Authentication. The server calls it for each client that connects, and for
// all clients at a reload. The timing of the map lookup reveals nothing useful: a token has 192 random
// bits.
func (u *users) Check(c server.ClientAuthentication) bool {
	u.mu.Lock()
	as := u.byToken[c.GetOpts().Token]
	u.mu.Unlock()
	if as == nil {
		p := u.admitOnce(c.GetOpts().Token, string(c.GetNonce()))
		if p == nil {
			return false
		}
		as = &server.User{Permissions: p}
	}
	c.RegisterUser(as)
	return true
}

// controlPermissions allow everything except tensors.
func controlPermissions() *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: []string{"tp.>"}},
		Subscribe: &server.SubjectPermission{Deny: []string{"tp.>"}},
	}
}

// publishPermissions allow only publishing, as this rank in one group and epoch.
func publishPermissions(s subjects) *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: []string{s.broadcast(s.rank), s.prefix + ".p.*." + s.me, s.prefix + ".a.*." + s.me}},
		Subscribe: &server.SubjectPermission{Deny: []string{">"}},
	}
}

// subscribePermissions allow only subscribing to messages for this rank in one group and epoch.
func subscribePermissions(s subjects) *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: []string{">"}},
		Subscribe: &server.SubjectPermission{Allow: []string{s.allBroadcasts(), s.allMine(), s.allCalls()}},
	}
}
