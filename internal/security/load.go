package security

import (
	"fmt"
	"io"
	"os"
)

// EnvKey is the environment variable that may hold the cluster key.
const EnvKey = "SHOAL_CLUSTER_KEY"

const maxKeyFile = 4096

// LoadKey reads the cluster key from file, if not empty, else from SHOAL_CLUSTER_KEY. If both are
// empty it returns the zero Key and no error.
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

// ReadKeyFile reads keys, one per line, from a regular file that only its owner can read. The first
// is used, all are accepted. Reload reads the file again.
func ReadKeyFile(path string) (Key, error) {
	f, err := OpenPrivate(path)
	if err != nil {
		return Key{}, fmt.Errorf("security: cluster key: %w", err)
	}
	defer f.Close()
	keys, err := readKeys(f)
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w", path, err)
	}
	return onRing(path, keys), nil
}

func readKeys(r io.Reader) ([]Key, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("security: cluster key: %w", err)
	}
	return parseKeys(string(text))
}

// KeyPipe returns a pipe that contains the keys of k, for a child to inherit. So neither the
// child's arguments nor its environment reveal them. The caller closes the pipe.
func KeyPipe(k Key) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("security: cluster key: %w", err)
	}
	for _, x := range k.Keys() {
		if err == nil {
			_, err = w.WriteString(x.Text() + "\n") // fits the buffer of any pipe
		}
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("security: cluster key: %w", err)
	}
	return r, nil
}

// ReadKeyPipe reads a key from an inherited descriptor and closes it.
func ReadKeyPipe(fd int) (Key, error) {
	f := os.NewFile(uintptr(fd), "key")
	if f == nil {
		return Key{}, fmt.Errorf("security: cluster key: descriptor %d is not open", fd)
	}
	defer f.Close()
	keys, err := readKeys(f)
	if err != nil {
		return Key{}, err
	}
	return onRing("", keys), nil
}

// WriteKeyFile writes k to a new file with mode 0600. It never overwrites.
func WriteKeyFile(path string, k Key) error {
	if k.IsZero() {
		return ErrNoKey
	}
	if err := CreatePrivate(path, []byte(k.Text()+"\n")); err != nil {
		return fmt.Errorf("security: cluster key: %w", err)
	}
	return nil
}
