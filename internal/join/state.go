package join

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"time"
)

// Record is the part of a token that the server stores. Its reader cannot join with it.
type Record struct {
	ID      string            `json:"id"`
	Public  ed25519.PublicKey `json:"public_key"` // of the key that follows from the secret
	Created time.Time         `json:"created"`
	Expires time.Time         `json:"expires"`
	Joined  []string          `json:"joined,omitempty"` // names of the machines, the last ones
	Uses    int               `json:"uses"`
}

// timeLayout writes times in messages.
const timeLayout = "2006-01-02 15:04:05 MST"

// remember is how long an expired token is kept, so that it is refused by name.
const remember = 24 * time.Hour

// mostRecords bounds the tokens of a cluster, mostJoined the names of one.
const (
	mostRecords = 256
	mostJoined  = 64
)

// Why a request is refused.
const (
	CodeWrong   = "wrong_token"
	CodeExpired = "expired_token"
	CodeVersion = "unknown_version"
	CodeLimited = "too_many_attempts"
	CodeFailed  = "server_error"
)

// Refusal is the answer to a request that is refused.
type Refusal struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func (r *Refusal) Error() string { return "join: " + r.Text }

// judge decides on a request with a token's ID and a signature of the connection. Only a valid
// signature gets the answer that the token has expired.
func judge(records []Record, id string, signed, signature []byte, now time.Time) *Refusal {
	i := slices.IndexFunc(records, func(r Record) bool { return r.ID == id })
	if i < 0 || len(records[i].Public) != ed25519.PublicKeySize || !ed25519.Verify(records[i].Public, signed, signature) {
		return noSuchToken()
	}
	if r := records[i]; !now.Before(r.Expires) {
		return &Refusal{CodeExpired,
			fmt.Sprintf("token %s has expired at %s, by the clock of the first machine, where it is %s; `shoal token create` there makes another one",
				r.ID, r.Expires.UTC().Format(timeLayout), now.UTC().Format(timeLayout))}
	}
	return nil
}

func noSuchToken() *Refusal {
	return &Refusal{CodeWrong,
		"this cluster has no such token: it was revoked, expired more than a day ago, or belongs to another cluster; `shoal token create` on " +
			"the first machine makes one"}
}

// prune drops the records that expired long ago, and the oldest ones beyond the bound.
func prune(records []Record, now time.Time) []Record {
	records = slices.DeleteFunc(records, func(r Record) bool { return now.After(r.Expires.Add(remember)) })
	if extra := len(records) - mostRecords; extra > 0 {
		records = slices.Delete(records, 0, extra)
	}
	return records
}

// used notes that a machine has joined with a token.
func used(records []Record, id, machine string) []Record {
	for i := range records {
		if r := &records[i]; r.ID == id {
			r.Uses++
			r.Joined = append(slices.DeleteFunc(r.Joined, func(name string) bool { return name == machine }), machine)
			r.Joined = r.Joined[max(0, len(r.Joined)-mostJoined):]
		}
	}
	return records
}
