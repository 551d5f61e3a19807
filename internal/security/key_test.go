package security

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestKeyText(t *testing.T) {
	k := NewKey()
	text := k.Text()
	if len(text) != len("shoal1-")+48 {
		t.Errorf("key of %d characters", len(text))
	}
	got, err := ParseKey(" " + text + "\n")
	if err != nil || !got.Equal(k) {
		t.Fatalf("read back: %v", err)
	}
	if k.Equal(NewKey()) || k.Equal(Key{}) || !(Key{}).Equal(Key{}) {
		t.Error("Equal")
	}
	for i := range text { // every wrong character is detected
		bad := []byte(text)
		bad[i] ^= 1
		if _, err := ParseKey(string(bad)); !errors.Is(err, ErrKeyFormat) {
			t.Errorf("character %d changed: %v", i, err)
		}
	}
	for _, bad := range []string{"", "shoal1-", "shoal2-" + text[7:], text[:40], text + "A", text[7:]} {
		if _, err := ParseKey(bad); !errors.Is(err, ErrKeyFormat) {
			t.Errorf("%q: %v", bad, err)
		} else if len(bad) > 20 && strings.Contains(err.Error(), bad[10:20]) {
			t.Errorf("the error repeats the key: %v", err)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add(NewKey().Text())
	f.Add("shoal1-AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		if err == nil && k.Text() != strings.TrimSpace(text) {
			t.Errorf("two texts for one key: %q", text)
		}
	})
}

// Printing a key, or a value that contains one, reveals nothing.
func TestKeyIsNeverShown(t *testing.T) {
	k := NewKey()
	holder := struct {
		Name string
		Key  Key
		Ptr  *Key
	}{"n", k, &k}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("text", "key", k, "holder", holder, "ptr", &k)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("json", "key", k, "holder", holder, "ptr", &k)
	j, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		fmt.Fprintf(&out, verb+" "+verb+" "+verb+"\n", k, &k, holder)
	}
	shown := out.String()
	body := k.Text()[7:]
	for _, secret := range []string{body, body[:12], fmt.Sprintf("%x", k.secret[:6]),
		fmt.Sprintf("%X", k.secret[:6]), strings.Trim(fmt.Sprint(k.secret[:4]), "[]")} {
		if strings.Contains(shown, secret) {
			t.Errorf("the secret shows as %q in %s", secret, shown)
		}
	}
	if !strings.Contains(shown, redacted) {
		t.Error("no placeholder")
	}
}

func TestDerivedSecretsDiffer(t *testing.T) {
	k, other := NewKey(), NewKey()
	seen := map[string]string{}
	for name, s := range map[string]string{
		"gossip": string(k.Gossip()), "other gossip": string(other.Gossip()), "fingerprint": k.Fingerprint(),
		"node": k.BusPassword(RoleNode), "coordinator": k.BusPassword(RoleCoordinator), "other node": other.BusPassword(RoleNode),
	} {
		if before, dup := seen[s]; dup {
			t.Errorf("%s and %s are the same", name, before)
		}
		seen[s] = name
	}
	same := k
	if !bytes.Equal(k.Gossip(), same.Gossip()) || len(k.Gossip()) != 32 || k.BusPassword(RoleNode) != same.BusPassword(RoleNode) {
		t.Error("not a function of the key")
	}
	// A fixed expectation: a change here would split running clusters.
	fixed := Key{set: true}
	if got := fixed.Fingerprint(); got != knownFingerprint {
		t.Errorf("fingerprint of the zero secret is %s, was %s", got, knownFingerprint)
	}
	if (Key{}).Fingerprint() != "none" {
		t.Error("fingerprint of no key")
	}
}

// TestKeyAtOnce: processes that make a key file at once all read the same key.
func TestKeyAtOnce(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		path := filepath.Join(dir, fmt.Sprint("key-", i))
		var keys [4]Key
		var wg sync.WaitGroup
		for j := range keys {
			wg.Go(func() {
				err := WriteKeyFile(path, NewKey())
				if err == nil || errors.Is(err, fs.ErrExist) {
					keys[j], err = LoadKey(path)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, k := range keys {
			if !k.Equal(keys[0]) {
				t.Errorf("keys %s and %s of one file", k.Fingerprint(), keys[0].Fingerprint())
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestLoadKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	k := NewKey()
	if err := WriteKeyFile(path, k); err != nil {
		t.Fatal(err)
	}
	if err := WriteKeyFile(path, NewKey()); err == nil {
		t.Error("overwrote a key")
	}
	if err := WriteKeyFile(filepath.Join(dir, "none"), Key{}); !errors.Is(err, ErrNoKey) {
		t.Errorf("wrote no key: %v", err)
	}
	if got, err := LoadKey(path); err != nil || !got.Equal(k) {
		t.Errorf("%v", err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a readable key file: %v", err)
	}
	if _, err := LoadKey(dir); err == nil {
		t.Error("a folder was read")
	}
	if _, err := LoadKey(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	other := NewKey()
	t.Setenv(EnvKey, other.Text())
	if got, err := LoadKey(""); err != nil || !got.Equal(other) {
		t.Errorf("environment: %v", err)
	}
	t.Setenv(EnvKey, "nonsense")
	if _, err := LoadKey(""); !errors.Is(err, ErrKeyFormat) || !strings.Contains(err.Error(), EnvKey) ||
		strings.Contains(err.Error(), "nonsense") {
		t.Errorf("environment: %v", err)
	}
	t.Setenv(EnvKey, "")
	if got, err := LoadKey(""); err != nil || !got.IsZero() {
		t.Errorf("nothing set: %v", err)
	}
}

func TestCheckBind(t *testing.T) {
	for addr, local := range map[string]bool{
		"127.0.0.1:80": true, "127.8.8.8:80": true, "[::1]:80": true, "localhost:80": true, "LOCALHOST:1": true, "[::ffff:127.0.0.1]:80": true,
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "example.org:80": false, "127.0.0.1.example.org:80": false,
	} {
		for name, check := range map[string]func(string, bool) error{"bind": CheckBind, "api": CheckAPIBind} {
			if err := check(addr, true); err != nil {
				t.Errorf("%s %s with a key: %v", name, addr, err)
			}
			if err := check(addr, false); (err == nil) != local || err != nil && !errors.Is(err, ErrOpenBind) {
				t.Errorf("%s %s without: %v", name, addr, err)
			}
		}
	}
	if err := CheckBind("127.0.0.1", true); err == nil {
		t.Error("no port")
	}
}
