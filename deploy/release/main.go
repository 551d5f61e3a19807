// Command release builds the files for users: for each platform an archive with the program and the
// bundled model, the list of linked modules (CycloneDX), and SHA256SUMS. The same commit gives the
// same bytes on every machine.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// platforms of `make release`. Linux on amd64 is tested; the others only compile.
const platforms = "linux/amd64 linux/arm64 darwin/arm64 windows/amd64"

// files are included in every archive, relative to the root of the sources. A folder is included
// with its files, without subfolders.
var files = []string{"README.md", "CHANGELOG.md", "LICENSE", "models/fry", "models/fry-tools"}

// left lists files of those folders that only tests need.
var left = map[string]bool{"goldens.json": true}

func main() {
	out := flag.String("out", "dist", "folder to write to; what it held is overwritten")
	only := flag.String("only", platforms, "platforms, as in \"linux/amd64 darwin/arm64\"")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := release(ctx, *out, strings.Fields(*only)); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// source describes the sources of a release.
type source struct {
	version string // v1.2.3, the newest in CHANGELOG.md
	commit  string // from git; "" outside a checkout
	made    time.Time
}

func release(ctx context.Context, out string, platforms []string) error {
	src, err := read(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var sums []string
	for _, p := range platforms {
		began := time.Now()
		written, err := src.write(ctx, out, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, name := range written {
			sum, size, err := checksum(filepath.Join(out, name))
			if err != nil {
				return err
			}
			sums = append(sums, sum+"  "+name+"\n")
			fmt.Printf("%-48s %6.1f MB\n", name, float64(size)/1e6)
		}
		fmt.Printf("%s in %.0f s\n", p, time.Since(began).Seconds())
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(strings.Join(sums, "")), 0o644)
}

var versionLine = regexp.MustCompile(`(?m)^## \[(v\d+\.\d+\.\d+)\]`)

// read determines version, commit and time of the sources in the working directory.
func read(ctx context.Context) (source, error) {
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return source{}, fmt.Errorf("run it in the root of the sources: %w", err)
	}
	m := versionLine.FindSubmatch(text)
	if m == nil {
		return source{}, errors.New("CHANGELOG.md has no line \"## [v1.2.3]\"")
	}
	s := source{version: string(m[1]), made: time.Unix(0, 0)}
	if seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		s.made = time.Unix(seconds, 0)
	}
	line, err := git(ctx, "log", "-1", "--format=%H %ct")
	if err != nil {
		fmt.Fprintln(os.Stderr, "release: no commit is named, as git does not answer:", err)
		return s, nil
	}
	commit, at, _ := strings.Cut(line, " ")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return s, fmt.Errorf("git names the time of the commit as %q", at)
	}
	s.commit = commit[:min(12, len(commit))]
	if os.Getenv("SOURCE_DATE_EPOCH") == "" {
		s.made = time.Unix(seconds, 0)
	}
	if changed, err := git(ctx, "status", "--porcelain", "--untracked-files=no"); err != nil || changed != "" {
		s.commit += "+changes"
	}
	return s, nil
}

func git(ctx context.Context, args ...string) (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	text, err := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=" + wd}, args...)...).Output()
	return strings.TrimSpace(string(text)), err
}

// write creates the files of one platform and returns their names.
func (s source) write(ctx context.Context, out, platform string) (written []string, err error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return nil, errors.New("want OS/ARCHITECTURE")
	}
	tmp, err := os.MkdirTemp("", "shoal-release-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	name := fmt.Sprintf("shoal-%s-%s-%s", s.version, goos, goarch)
	program, pack, suffix := "shoal", tarball, ".tar.gz"
	if goos == "windows" {
		program, pack, suffix = "shoal.exe", zipped, ".zip"
	}
	built := filepath.Join(tmp, program)
	if err := s.build(ctx, built, goos, goarch); err != nil {
		return nil, err
	}
	modules, err := linked(ctx, built)
	if err != nil {
		return nil, err
	}
	bom, err := bill(s, platform, modules)
	if err != nil {
		return nil, err
	}
	members, err := s.members(built, program, modules)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := pack(&b, name, s.made, members); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{name + suffix, b.Bytes()}, {name + ".cdx.json", bom}} {
		if err := os.WriteFile(filepath.Join(out, f.name), f.data, 0o644); err != nil {
			return nil, err
		}
		written = append(written, f.name)
	}
	return written, nil
}

// buildTags of a release. Without its pages of traces, which nothing here serves, gRPC needs no
// HTML templates.
const buildTags = "grpcnotrace"

// build compiles the program: static, without the paths of the build machine and without a symbol
// table.
func (s source) build(ctx context.Context, to, goos, goarch string) error {
	const pkg = "github.com/shoal-llm/shoal/cluster"
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", buildTags, "-ldflags", "-s -w -X " + pkg + ".version=" + s.version +
		" -X " + pkg + ".commit=" + s.commit, "-o", to, "./cmd/shoal"}
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOAMD64="+cmp.Or(os.Getenv("GOAMD64"), "v1"),
		"GOFLAGS=", "GOTOOLCHAIN=local")
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// members returns the contents of an archive.
func (s source) members(built, program string, modules []module) ([]member, error) {
	code, err := os.ReadFile(built)
	if err != nil {
		return nil, err
	}
	notices, err := notices(modules)
	if err != nil {
		return nil, err
	}
	all := []member{{program, 0o755, code}, {"NOTICES.txt", 0o644, notices}}
	for _, f := range files {
		found, err := filepath.Glob(filepath.Join(filepath.FromSlash(f), "*"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			found = []string{filepath.FromSlash(f)}
		}
		for _, path := range found {
			if left[filepath.Base(path)] {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			all = append(all, member{filepath.ToSlash(path), 0o644, data})
		}
	}
	return all, nil
}
