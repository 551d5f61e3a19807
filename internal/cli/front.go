package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// front is what the API reads from files of its operator: keys, certificate and the
// place of the audit log. They are read again on SIGHUP, keys and certificate also when
// their files change.
type front struct {
	flags *listenFlags
	log   *slog.Logger
	cert  atomic.Pointer[tls.Certificate]
	audit *reopened // nil: none
	hup   chan os.Signal

	tracer *tracing.Tracer // nil: nobody is told
}

// traceLimit bounds sending the last traces.
const traceLimit = 3 * time.Second

// watchEvery is how often the files are looked at.
const watchEvery = 2 * time.Second

// front opens the files, and takes SIGHUP from here on, until close.
func (f *listenFlags) front(e *env, log *slog.Logger) (*front, error) {
	fr := &front{flags: f, log: log, hup: make(chan os.Signal, 1)}
	if err := fr.readCertificate(); err != nil {
		return nil, err
	}
	if f.AuditLog != "" {
		fr.audit = &reopened{path: f.AuditLog}
		if err := fr.audit.reopen(); err != nil {
			return nil, fmt.Errorf("--audit-log: %w", err)
		}
	}
	if f.OTLP != "" || tracing.Wanted() {
		var err error
		if fr.tracer, err = tracing.Start(e.ctx, f.OTLP, cluster.Build(), log); err != nil {
			return nil, fmt.Errorf("--otlp: %w", err)
		}
	}
	if !isTerminal(e.stdin) { // else it tells that the terminal is gone, which ends the program
		signal.Notify(fr.hup, syscall.SIGHUP)
	}
	return fr, nil
}

// traces is where they go; a front may be nil.
func (fr *front) traces() *tracing.Tracer {
	if fr == nil {
		return nil
	}
	return fr.tracer
}

func (fr *front) close() {
	signal.Stop(fr.hup)
	if fr.audit != nil {
		fr.audit.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceLimit)
	defer cancel()
	if err := fr.tracer.Close(ctx); err != nil {
		fr.log.Warn("the last traces are not delivered", "error", err)
	}
}

// config is the API's part of it.
func (fr *front) config() (cluster.APIConfig, error) {
	f := fr.flags
	cfg := cluster.APIConfig{Strict: f.Strict, AllowOrigins: f.AllowOrigin, Template: f.ChatTemplate, ToolParser: f.ToolParser, Version: cluster.Build(), Logger: fr.log}
	var err error
	if cfg.Keys, err = f.keys(); err != nil {
		return cfg, err
	}
	cfg.TLS = fr.tls()
	if fr.audit != nil {
		cfg.Audit = slog.New(slog.NewJSONHandler(fr.audit, nil))
	}
	return cfg, nil
}

// tls is nil without a certificate; a front may be nil.
func (fr *front) tls() *tls.Config {
	if fr == nil || fr.flags.TLSCert == "" {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return fr.cert.Load(), nil }}
}

// keys are those of the flags, for operators, and those of the file.
func (f *listenFlags) keys() ([]api.Key, error) {
	keys := api.OperatorKeys(f.APIKey...)
	if f.APIKeys == "" {
		return keys, nil
	}
	file, err := security.OpenPrivate(f.APIKeys)
	if err != nil {
		return nil, fmt.Errorf("--api-keys: %w", err)
	}
	defer file.Close()
	text, err := readAll(file)
	if err != nil {
		return nil, fmt.Errorf("--api-keys: %w", err)
	}
	more, err := api.ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("--api-keys %s: %w", f.APIKeys, err)
	}
	return slices.Concat(keys, more), nil
}

// readSmall reads a file of at most 16 MiB.
func readSmall(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file)
}

func readAll(file *os.File) ([]byte, error) {
	const most = 16 << 20
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s has more than %d bytes", file.Name(), most)
	}
	return text, err
}

func (fr *front) readCertificate() error {
	if fr.flags.TLSCert == "" {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(fr.flags.TLSCert, fr.flags.TLSKey)
	if err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	fr.cert.Store(&cert)
	return nil
}

// watch reads the files again until ctx ends. What cannot be read leaves all as it is.
func (fr *front) watch(ctx context.Context, srv *api.Server) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	before := fr.stamps()
	for {
		why := "a file has changed"
		select {
		case <-ctx.Done():
			return
		case <-fr.hup:
			why = "SIGHUP"
			if fr.audit != nil {
				fr.note("audit log", fr.audit.reopen(), why)
			}
		case <-t.C:
			if slices.Equal(before, fr.stamps()) {
				continue
			}
		}
		before = fr.stamps()
		if fr.flags.TLSCert != "" {
			fr.note("certificate", fr.readCertificate(), why)
		}
		keys, err := fr.flags.keys()
		if err == nil {
			err = srv.SetKeys(keys)
		}
		fr.note("API keys", err, why)
	}
}

func (fr *front) note(what string, err error, why string) {
	if err != nil {
		fr.log.Error(what+" not read again: the old stays", "error", err, "because", why)
		return
	}
	fr.log.Info(what+" read again", "because", why)
}

// stamps tells a file from what it was.
func (fr *front) stamps() []string {
	var out []string
	for _, path := range []string{fr.flags.APIKeys, fr.flags.TLSCert, fr.flags.TLSKey} {
		if path == "" {
			continue
		}
		stamp := path
		if info, err := os.Stat(path); err == nil {
			stamp = fmt.Sprint(info.ModTime(), info.Size(), info.Mode())
		}
		out = append(out, stamp)
	}
	return out
}

// reopened is a file that is appended to, and opened again when it was moved away.
type reopened struct {
	path string
	mu   sync.Mutex
	file *os.File
}

func (r *reopened) reopen() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		_ = r.file.Close()
	}
	r.file = f
	return nil
}

func (r *reopened) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file.Write(p)
}

func (r *reopened) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.file.Close()
}
