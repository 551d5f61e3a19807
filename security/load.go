package security

import (
	"fmt"
	"io"
	"os"
)

// EnvKey is the environment variable that may hold the cluster key.
const EnvKey = "SHOAL_CLUSTER_KEY"

const maxKeyFile = 4096

// LoadKey finds the cluster key: in file when that is not empty, else in
// SHOAL_CLUSTER_KEY, else nowhere (the zero Key and no error: a cluster on
// loopback needs none, see CheckBind).
func LoadKey(file string) (Key, error) {
	if file != "" {
		return ReadKeyFile(file)
	}
	text := os.Getenv(EnvKey)
	if text == "" {
		return Key{}, nil
	}
	k, err := ParseKey(text)
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w", EnvKey, err)
	}
	return k, nil
}

// ReadKeyFile reads keys, one a line, from a regular file that only its owner can read. The
// first is used, all are accepted; Reload reads the file again.
func ReadKeyFile(path string) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, fmt.Errorf("security: cluster key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("security: cluster key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Key{}, fmt.Errorf("security: cluster key %s is not a regular file", path)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return Key{}, fmt.Errorf("security: cluster key %s has mode %04o, so others on this machine can read it; run 'chmod 600 %s'", path, perm, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return Key{}, fmt.Errorf("security: cluster key: %w", err)
	}
	keys, err := parseKeys(string(text))
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w", path, err)
	}
	return onRing(path, keys), nil
}

// WriteKeyFile writes k to a new file of mode 0600; it does not overwrite.
func WriteKeyFile(path string, k Key) error {
	if k.IsZero() {
		return ErrNoKey
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("security: cluster key: %w", err)
	}
	_, err = f.WriteString(k.Text() + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("security: cluster key: %w", err)
	}
	return nil
}
