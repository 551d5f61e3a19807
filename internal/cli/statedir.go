package cli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// stateHome is the user's folder for what programs keep: not the cache, which people and
// programs empty. "": none.
func stateHome() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	switch runtime.GOOS {
	case "windows":
		return os.Getenv("LocalAppData")
	case "darwin":
		dir, _ := os.UserConfigDir() // none without a home
		return dir
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state")
	}
	return ""
}

// jobsDir is the folder of a checkpoint's jobs: those of one model mean nothing to
// another. suffix tells kinds of clusters apart. Where an earlier version has left jobs in
// the user's cache, and there are none in the new place, that is it. "": there is no home.
func jobsDir(checkpoint, suffix string) (dir string, old bool, err error) {
	abs, err := filepath.Abs(checkpoint)
	if err != nil {
		return "", false, err
	}
	name := filepath.Join("shoal", "jobs", fmt.Sprintf("%x", sha256.Sum256([]byte(abs)))[:16]+suffix)
	home := stateHome()
	if home != "" && exists(filepath.Join(home, name)) {
		return filepath.Join(home, name), false, nil
	}
	if cache, err := os.UserCacheDir(); err == nil && exists(filepath.Join(cache, name)) {
		return filepath.Join(cache, name), true, nil
	}
	if home == "" {
		return "", false, nil
	}
	return filepath.Join(home, name), false, nil
}
