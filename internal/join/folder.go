package join

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// Folder is the folder in which the first machine of a cluster keeps the files for a restart: the cluster key,
// the identity of its server, its addresses and the records of its tokens.
type Folder struct {
	Dir    string
	Tokens *Tokens

	identity identity
}

// Addresses are the addresses of a cluster's first machine.
type Addresses struct {
	Join   string `json:"join"`   // of the Server
	Gossip string `json:"gossip"` // of the coordinator; with a standby those of both, comma between
}

// OpenFolder opens the folder, with create also one that is not there. Without create, root is refused in the folder of
// another user.
func OpenFolder(dir string, create bool) (*Folder, error) {
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
	} else if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("join: there is no cluster in %s: start one with `shoal up --cluster NAME`, or name its --data-dir", dir)
	} else if err := checkOwner(dir, info); err != nil {
		return nil, err
	}
	id, err := openIdentity(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{Dir: dir, identity: id, Tokens: &Tokens{dir: dir, pin: id.pin}}, nil
}

// Pin returns the fingerprint of the server.
func (f *Folder) Pin() Pin { return f.identity.pin }

// KeyFile returns the file of the cluster key, which is drawn when there is none.
func (f *Folder) KeyFile() (string, error) {
	path := filepath.Join(f.Dir, "key")
	err := security.WriteKeyFile(path, security.NewKey())
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return path, err
}

// Addresses returns the addresses that were saved last; zero: none were saved.
func (f *Folder) Addresses() (a Addresses, err error) {
	return a, readJSON(filepath.Join(f.Dir, "addresses.json"), &a)
}

// SaveAddresses stores addresses for the next start, and for `shoal token create`.
func (f *Folder) SaveAddresses(a Addresses) error {
	return writeJSON(filepath.Join(f.Dir, "addresses.json"), a)
}

// Membership is a machine's record of a cluster that it has joined.
type Membership struct {
	Cluster string   `json:"cluster"`
	Join    []string `json:"join"`            // gossip addresses
	Server  string   `json:"server"`          // where the token was exchanged
	Model   string   `json:"model,omitempty"` // reference of the model; empty: the cluster has it in a folder
	Pin     string   `json:"pin"`

	KeyFile string `json:"-"`
}

// SaveGrant keeps a grant in a folder: the key in a file of its own, which the owner alone can
// read.
func SaveGrant(dir string, g *Grant, server string, pin Pin) (m Membership, err error) {
	m = Membership{Cluster: g.Cluster, Join: g.Join, Server: server, Model: g.Model, Pin: pin.Text(), KeyFile: filepath.Join(dir, "key")}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return m, fmt.Errorf("join: %w", err)
	}
	if err := wholefile.Write(m.KeyFile, []byte(g.keyText()), 0o600); err != nil {
		return m, err
	}
	return m, writeJSON(filepath.Join(dir, "cluster.json"), m)
}

// LoadMembership reads the membership that SaveGrant has stored in a folder. fs.ErrNotExist: there is none.
func LoadMembership(dir string) (m Membership, err error) {
	text, err := readPrivate(filepath.Join(dir, "cluster.json"))
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	m.KeyFile = filepath.Join(dir, "key")
	if err == nil {
		_, err = security.ReadKeyFile(m.KeyFile)
	}
	if err != nil {
		return m, fmt.Errorf("join: %s: %w", dir, err)
	}
	return m, nil
}

// Memberships are those kept in the folders below dir, sorted by name.
func Memberships(dir string) (out []Membership, err error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, d := range list {
		if m, err := LoadMembership(filepath.Join(dir, d.Name())); err == nil {
			out = append(out, m)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b Membership) int { return strings.Compare(a.Cluster, b.Cluster) })
	return out, err
}

// From reports whether the membership came from the server with this fingerprint.
func (m *Membership) From(p Pin) bool { return m.Pin == p.Text() }

func readJSON(path string, v any) error {
	text, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("join: %s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Write(path, append(text, '\n'), 0o600)
}
