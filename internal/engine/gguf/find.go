package gguf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Find returns the model file for path: path itself if it names a .gguf file, or the only model in
// the folder path (the first part if it is split). In a folder it ignores projectors and importance
// matrices. Errors: ErrNotFound for a folder without a .gguf file and for a path that is neither;
// ErrAmbiguous for a folder with several models; ErrPart if the only model lacks a part.
func Find(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", notThere(path, err)
	}
	if !st.IsDir() {
		if strings.EqualFold(filepath.Ext(path), ".gguf") {
			return Parts(path)[0], nil
		}
		return "", &Error{Path: path, Kind: ErrNotFound, Detail: "not a .gguf file"}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", notThere(path, err)
	}
	var firsts []string // the first file of each model, in order of name
	for _, e := range entries {
		if !strings.EqualFold(filepath.Ext(e.Name()), ".gguf") {
			continue
		}
		if first := Parts(filepath.Join(path, e.Name()))[0]; !slices.Contains(firsts, first) {
			firsts = append(firsts, first)
		}
	}
	if len(firsts) == 0 {
		return "", &Error{Path: path, Kind: ErrNotFound, Detail: "the folder holds no .gguf file"}
	}
	if len(firsts) > 1 {
		if models := slices.DeleteFunc(slices.Clone(firsts), notModel); len(models) > 0 {
			firsts = models
		}
	}
	if len(firsts) > 1 {
		return "", &Error{Path: path, Kind: ErrAmbiguous, Detail: fmt.Sprintf("the folder holds %d .gguf files (%s, %s ...): name one of them",
			len(firsts), clip(filepath.Base(firsts[0])), clip(filepath.Base(firsts[1])))}
	}
	return firsts[0], missingPart(firsts[0])
}

// missingPart returns an error if a part of a split model is missing.
func missingPart(first string) error {
	parts := Parts(first)
	for i, p := range parts {
		if _, err := os.Stat(p); os.IsNotExist(err) && len(parts) > 1 {
			return &Error{Path: first, Kind: ErrPart,
				Detail: fmt.Sprintf("part %d of %d is missing: %s: no such file", i+1, len(parts), filepath.Base(p))}
		}
	}
	return nil
}

// notModel recognises files that accompany a model, by the names that llama.cpp's tools give them
// or by their metadata.
func notModel(path string) bool {
	name := strings.ToLower(filepath.Base(path))
	if strings.Contains(name, "mmproj") || strings.Contains(name, "imatrix") {
		return true
	}
	f, err := Open(path)
	if err != nil {
		return false // it may be the model, and then its error must be reported
	}
	defer f.Close()
	arch, _ := f.Text("general.architecture", "")
	kind, _ := f.Text("general.type", "model")
	return arch == "clip" || slices.Contains([]string{"mmproj", "imatrix", "adapter"}, kind)
}
