package model

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// The cache of huggingface_hub has a folder models--ORG--NAME a repository. Its snapshots
// folder has one folder a commit, and refs/main holds the commit of the main branch.
const (
	hubPrefix    = "models--"
	hubSnapshots = "snapshots"
)

// Locate returns the folder of files that path means: for a repository of the Hugging Face
// cache the snapshot of its main branch, or its only snapshot; else path itself.
func Locate(path string) (string, error) {
	snapshots := join(path, hubSnapshots)
	if _, whole := os.Stat(join(path, configFile)); whole == nil || hubName(path) == "" {
		return path, nil
	}
	entries, err := os.ReadDir(snapshots)
	if errors.Is(err, os.ErrNotExist) {
		return path, nil
	} else if err != nil {
		return "", notThere(snapshots, err)
	}
	main := filepath.Join(path, "refs", "main")
	commit, err := readSmall(main, 1<<10)
	if err == nil {
		name := strings.TrimSpace(string(commit))
		dir := join(snapshots, name)
		if st, err := os.Stat(dir); err == nil && st.IsDir() && filepath.IsLocal(name) && name != "." {
			return dir, nil
		}
		return "", &Error{File: main, Kind: ErrNoCheckpoint, Detail: "names the snapshot " + clip(name) + ", which is not in " + snapshots + ": download it, or name a snapshot"}
	} else if !errors.Is(err, ErrMissing) {
		return "", err
	}
	if len(entries) != 1 {
		return "", &Error{File: snapshots, Kind: ErrNoCheckpoint, Detail: "holds " + snapshotsText(entries) + " and there is no refs/main: name one of them"}
	}
	return join(snapshots, entries[0].Name()), nil
}

func snapshotsText(entries []os.DirEntry) string {
	var names []string
	for _, e := range entries[:min(len(entries), 4)] {
		names = append(names, clip(e.Name()))
	}
	if len(entries) == 0 {
		return "no snapshot"
	}
	return strings.Join(names, ", ")
}

// NameOf is what a model at path is called: ORG/NAME in the Hugging Face cache, else the
// name of the folder, or of the GGUF file without its ending.
func NameOf(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		abs = filepath.Clean(path)
	}
	base := filepath.Base(abs)
	if ext := filepath.Ext(base); strings.EqualFold(ext, ".gguf") {
		return strings.TrimSuffix(base, ext)
	}
	if up := filepath.Dir(abs); filepath.Base(up) == hubSnapshots {
		if name := hubName(filepath.Dir(up)); name != "" {
			return name
		}
	}
	if name := hubName(abs); name != "" {
		return name
	}
	return base
}

// hubName is ORG/NAME of a repository's folder in the cache; "": path is none.
func hubName(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	name, ok := strings.CutPrefix(filepath.Base(abs), hubPrefix)
	if !ok {
		return ""
	}
	return strings.ReplaceAll(name, "--", "/")
}
