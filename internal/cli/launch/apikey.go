package launch

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/security"
)

// AutoKey, as the only value of --api-key, requests a generated key.
const AutoKey = "auto"

// resolveAutoKey replaces --api-key auto with the key in the file at path. It creates the file
// on first use. It returns path, or "" if --api-key holds keys of the user.
func (f *listenFlags) resolveAutoKey(path string) (string, error) {
	if len(f.APIKey) != 1 || f.APIKey[0] != AutoKey {
		return "", nil
	}
	if path == "" {
		return "", errors.New("--api-key auto: there is no home directory for the key; set --data-dir, or choose a key yourself")
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = security.CreatePrivate(path, []byte(rand.Text()+"\n"))
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return "", notKept("the API key", err)
	}
	key, err := ReadKey(path)
	if err != nil {
		return "", fmt.Errorf("--api-key auto: %w", err)
	}
	f.APIKey = apiKeys{key}
	return path, nil
}

// notKept is the error of a secret that could not be written to the folder of --data-dir, or to its default.
func notKept(secret string, err error) error {
	return fmt.Errorf("%s cannot be kept: %w; --data-dir DIR sets another folder", secret, err)
}

// AutoKeyFile returns the file of the generated key of shoal up without --data-dir. It is "" if the
// user has no home directory.
func AutoKeyFile() string {
	if StateHome() == "" {
		return ""
	}
	return filepath.Join(StateHome(), "shoal", "api-key")
}

// ReadKey reads a key from a file that only its owner can read.
func ReadKey(path string) (string, error) {
	file, err := security.OpenPrivate(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(text))
	if key == "" {
		return "", fmt.Errorf("%s is empty; remove it to make a new key", path)
	}
	return key, nil
}
