package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// Settings name the servers of models and the folders that hold them. FromEnv fills them from the
// variables that Python's huggingface_hub and Ollama read.
type Settings struct {
	Endpoint  string // base URL of the hub (HF_ENDPOINT)
	Token     string // sent to the hub only (HF_TOKEN, or the file of HF_TOKEN_PATH)
	Cache     string // folder of hub repositories (HF_HUB_CACHE)
	ModelsDir string // folder of models of registries and URLs (SHOAL_MODELS)
	Ollama    string // Ollama's store, which is only read (OLLAMA_MODELS)
	Offline   bool   // no request leaves this machine (HF_HUB_OFFLINE)

	AnswerTimeout time.Duration // until a server's first byte (HF_HUB_ETAG_TIMEOUT)
	StallTimeout  time.Duration // without any progress of a download (HF_HUB_DOWNLOAD_TIMEOUT)
}

const (
	defaultEndpoint = "https://huggingface.co"
	maxTokenBytes   = 4 << 10
)

// FromEnv reads the variables through getenv, normally os.Getenv. home is the user's
// home folder.
func FromEnv(getenv func(string) string, home string) (Settings, error) {
	first := func(names ...string) string {
		for _, n := range names {
			if v := strings.TrimSpace(getenv(n)); v != "" {
				return v
			}
		}
		return ""
	}
	folder := func(otherwise string, names ...string) string {
		v := first(names...)
		switch {
		case v == "":
			return otherwise
		case v == "~":
			return home
		case strings.HasPrefix(v, "~/"):
			v = filepath.Join(home, v[2:])
		}
		return os.Expand(v, getenv)
	}
	cache := folder(filepath.Join(home, ".cache"), "XDG_CACHE_HOME")
	hfHome := folder(filepath.Join(cache, "huggingface"), "HF_HOME")
	s := Settings{
		Endpoint:      strings.TrimRight(first("HF_ENDPOINT"), "/"),
		Cache:         folder(filepath.Join(hfHome, "hub"), "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
		ModelsDir:     folder(filepath.Join(cache, "shoal", "models"), "SHOAL_MODELS"),
		Ollama:        folder(filepath.Join(home, ".ollama", "models"), "OLLAMA_MODELS"),
		Offline:       isTrue(first("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
		AnswerTimeout: 30 * time.Second,
		StallTimeout:  30 * time.Second,
	}
	if s.Endpoint == "" {
		s.Endpoint = defaultEndpoint
	}
	if u, err := url.Parse(s.Endpoint); err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return s, fmt.Errorf("HF_ENDPOINT: %q is not an http or https URL of a hub; an example is %s", s.Endpoint, defaultEndpoint)
	}
	for name, to := range map[string]*time.Duration{"HF_HUB_ETAG_TIMEOUT": &s.AnswerTimeout, "HF_HUB_DOWNLOAD_TIMEOUT": &s.StallTimeout} {
		if v := first(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > 24*3600 {
				return s, fmt.Errorf("%s: %q is not a number of seconds from 1 to 86400", name, v)
			}
			*to = time.Duration(n) * time.Second
		}
	}
	for name, at := range map[string]string{"HF_HUB_CACHE": s.Cache, "SHOAL_MODELS": s.ModelsDir} {
		if home == "" && !filepath.IsAbs(at) {
			return s, fmt.Errorf("this user has no home folder to keep models in: set %s to a folder", name)
		}
	}
	var err error
	if s.Cache, err = filepath.Abs(s.Cache); err != nil {
		return s, err
	}
	if s.ModelsDir, err = filepath.Abs(s.ModelsDir); err != nil {
		return s, err
	}
	s.Token, err = token(first("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), folder(filepath.Join(hfHome, "token"), "HF_TOKEN_PATH"))
	if isTrue(first("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		s.Token, err = "", nil
	}
	return s, err
}

// token returns own, the value of the variable, or else the first line of the file that `hf auth login`
// writes.
func token(own, file string) (string, error) {
	if own == "" {
		text, err := modelfile.Read(file, maxTokenBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		} else if err != nil {
			return "", fmt.Errorf("the hub's token: %w", err)
		}
		own, _, _ = strings.Cut(strings.TrimSpace(string(text)), "\n")
		own = strings.TrimSpace(own)
	}
	for _, c := range own {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("the hub's token has a character that no token has; set HF_TOKEN to the token alone")
		}
	}
	return own, nil
}

// isTrue reads a switch as huggingface_hub does.
func isTrue(v string) bool {
	switch strings.ToUpper(v) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}
