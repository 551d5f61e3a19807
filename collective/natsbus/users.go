package natsbus

import (
	"crypto/rand"
	"encoding/hex"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// users are the logins of one embedded server: one per connection that this
// process opens, a random token that never leaves it, with permissions for
// exactly what the connection is for. Tokens, not user names: a reload
// (AddRoute) closes clients whose user name is not in the server's own list.
type users struct {
	mu      sync.Mutex
	byToken map[string]*server.Permissions
}

func newUsers() *users { return &users{byToken: map[string]*server.Permissions{}} }

// mint makes a login; drop ends it.
func (u *users) mint(p *server.Permissions) (token string) {
	var secret [24]byte
	rand.Read(secret[:])
	token = hex.EncodeToString(secret[:])
	u.mu.Lock()
	u.byToken[token] = p
	u.mu.Unlock()
	return token
}

func (u *users) drop(token string) {
	u.mu.Lock()
	delete(u.byToken, token)
	u.mu.Unlock()
}

// Check is called by the server for each client that connects, and for all of
// them at a reload. A map lookup is no oracle here: guessing needs 192 bits.
func (u *users) Check(c server.ClientAuthentication) bool {
	u.mu.Lock()
	p, ok := u.byToken[c.GetOpts().Token]
	u.mu.Unlock()
	if !ok {
		return false
	}
	c.RegisterUser(&server.User{Permissions: p})
	return true
}

// controlPermissions: everything but the tensors.
func controlPermissions() *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: []string{"tp.>"}},
		Subscribe: &server.SubjectPermission{Deny: []string{"tp.>"}},
	}
}

// speakPermissions: speak as this rank in one group and epoch, hear nothing.
func speakPermissions(s subjects) *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: []string{s.broadcast(s.rank), s.prefix + ".p.*." + s.me}},
		Subscribe: &server.SubjectPermission{Deny: []string{">"}},
	}
}

// hearPermissions: hear what is for this rank in one group and epoch, say nothing.
func hearPermissions(s subjects) *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: []string{">"}},
		Subscribe: &server.SubjectPermission{Allow: []string{s.allBroadcasts(), s.allMine()}},
	}
}
