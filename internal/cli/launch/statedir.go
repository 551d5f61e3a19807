package launch

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// StateHome returns the user's folder for the state of programs, or "". It is not the cache,
// since people and programs empty that.
func StateHome() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	switch runtime.GOOS {
	case "windows":
		return os.Getenv("LocalAppData")
	case "darwin":
		dir, _ := os.UserConfigDir() // "" without a home directory
		return dir
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state")
	}
	return ""
}

// jobsDir returns the folder of the jobs of a checkpoint, since jobs are bound to a model. suffix
// separates kinds of clusters. If only the user's cache has jobs, left by an earlier version, it
// returns that folder, and old is true. dir is "" if the user has no home directory.
func jobsDir(checkpoint, suffix string) (dir string, old bool, err error) {
	abs, err := filepath.Abs(checkpoint)
	if err != nil {
		return "", false, err
	}
	name := filepath.Join("shoal", "jobs", fmt.Sprintf("%x", sha256.Sum256([]byte(abs)))[:16]+suffix)
	home := StateHome()
	if home != "" && ui.Exists(filepath.Join(home, name)) {
		return filepath.Join(home, name), false, nil
	}
	if cache, err := os.UserCacheDir(); err == nil && ui.Exists(filepath.Join(cache, name)) {
		return filepath.Join(cache, name), true, nil
	}
	if home == "" {
		return "", false, nil
	}
	return filepath.Join(home, name), false, nil
}
