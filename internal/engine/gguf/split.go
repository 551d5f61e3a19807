package gguf

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
)

// maxParts bounds the files that one model may be split into.
const maxParts = 1 << 10

var partName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})\.gguf$`)

// Parts lists the files of a model that llama-gguf-split has split (NAME-00001-of-00003.gguf), in
// order. It returns path alone if its name is not that of a part. The first part holds the
// metadata.
func Parts(path string) []string {
	m := partName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return []string{path}
	}
	n, _ := strconv.Atoi(m[3]) // five digits
	if n < 1 || n > maxParts {
		return []string{path}
	}
	var out []string
	for i := range n {
		out = append(out, filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i+1, m[3])))
	}
	return out
}

// OpenParts opens all files of Parts(path), starting with the first, and checks that they are the
// parts that their names claim.
func OpenParts(path string) (files []*File, err error) {
	paths := Parts(path)
	if err := missingPart(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close() // err is returned instead of its error
			}
			files = nil
		}
	}()
	for i, p := range paths {
		f, err := Open(p)
		if err != nil {
			return files, err
		}
		files = append(files, f)
		count, err := f.Int("split.count", 1, 0, maxParts)
		if err != nil {
			return files, err
		}
		no, err := f.Int("split.no", 0, 0, maxParts)
		if err != nil {
			return files, err
		}
		if max(count, 1) != int64(len(paths)) || no != int64(i) {
			return files, &Error{Path: p, Key: "split.count", Kind: ErrUnsupported, Detail: fmt.Sprintf(
				"part %d of %d by its metadata, %d of %d by its name; keep the names that llama-gguf-split gave, or merge the parts",
				no+1, count, i+1, len(paths))}
		}
	}
	return files, nil
}
