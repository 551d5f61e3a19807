package launch

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// apiSettings holds the settings of the API that come from the operator's files: keys,
// certificate and audit log. SIGHUP reloads them. A change of their files reloads keys and
// certificate, the certificate also while this process is a standby.
type apiSettings struct {
	flags   *listenFlags
	log     *slog.Logger
	cert    atomic.Pointer[tls.Certificate]
	audit   *reopenableFile // nil: none
	hangups chan os.Signal
	follows sync.WaitGroup // the file of the certificate
	quit    chan struct{}

	tracer *tracing.Tracer // nil if tracing is off
}

// traceFlushTimeout is the time limit for sending the last traces.
const traceFlushTimeout = 3 * time.Second

// watchInterval is the time between two checks of the files.
const watchInterval = 2 * time.Second

// openSettings opens the files. From then on it handles SIGHUP, until close.
func (f *listenFlags) openSettings(e *ui.Env, log *slog.Logger) (*apiSettings, error) {
	s := &apiSettings{flags: f, log: log, hangups: make(chan os.Signal, 1), quit: make(chan struct{})}
	before := fileStates(f.TLSCert, f.TLSKey)
	if err := s.readCertificate(); err != nil {
		return nil, err
	}
	if f.AuditLog != "" {
		s.audit = &reopenableFile{path: f.AuditLog}
		if err := s.audit.reopen(); err != nil {
			return nil, fmt.Errorf("--audit-log: %w", err)
		}
	}
	if f.OTLP != "" || tracing.Enabled() {
		var err error
		if s.tracer, err = tracing.Start(e.Ctx, f.OTLP, cluster.Build(), log); err != nil {
			return nil, fmt.Errorf("--otlp: %w", err)
		}
	}
	if !ui.IsTerminal(e.Stdin) { // at a terminal, SIGHUP reports its loss and ends the program
		signal.Notify(s.hangups, syscall.SIGHUP)
	}
	if f.TLSCert != "" {
		s.follows.Go(func() { s.followCertificate(before) })
	}
	return s, nil
}

// followCertificate reads the certificate again whenever its files change, until close.
func (s *apiSettings) followCertificate(before []string) {
	t := time.NewTicker(watchInterval)
	defer t.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-t.C:
		}
		if now := fileStates(s.flags.TLSCert, s.flags.TLSKey); !slices.Equal(before, now) {
			before = now
			s.logReload("certificate", s.readCertificate(), fileChanged)
		}
	}
}

// tracerOrNil returns the tracer; s may be nil.
func (s *apiSettings) tracerOrNil() *tracing.Tracer {
	if s == nil {
		return nil
	}
	return s.tracer
}

func (s *apiSettings) close() {
	signal.Stop(s.hangups)
	close(s.quit)
	s.follows.Wait()
	if s.audit != nil {
		s.audit.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceFlushTimeout)
	defer cancel()
	if err := s.tracer.Close(ctx); err != nil {
		s.log.Warn("the last traces were not delivered", "error", err)
	}
}

// config returns the settings as a config of the API.
func (s *apiSettings) config() (cluster.APIConfig, error) {
	f := s.flags
	cfg := cluster.APIConfig{Strict: f.Strict, AllowOrigins: f.AllowOrigin, Template: f.ChatTemplate, ToolParser: f.ToolParser,
		Version: cluster.Build(), Logger: s.log}
	var err error
	if cfg.Keys, err = f.keys(); err != nil {
		return cfg, err
	}
	cfg.TLS = s.tls()
	if s.audit != nil {
		cfg.Audit = slog.New(slog.NewJSONHandler(s.audit, nil))
	}
	return cfg, nil
}

// tls returns nil without a certificate; s may be nil.
func (s *apiSettings) tls() *tls.Config {
	if s == nil || s.flags.TLSCert == "" {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil }}
}

// keys returns the keys of --api-key, which have all permissions, and those of --api-keys.
func (f *listenFlags) keys() ([]httpserver.Key, error) {
	keys := httpserver.OperatorKeys(f.APIKey...)
	if f.APIKeys == "" {
		return keys, nil
	}
	file, err := security.OpenPrivate(f.APIKeys)
	if err != nil {
		return nil, fmt.Errorf("--api-keys: %w", err)
	}
	defer file.Close()
	text, err := ui.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("--api-keys: %w", err)
	}
	fromFile, err := httpserver.ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("--api-keys %s: %w", f.APIKeys, err)
	}
	return slices.Concat(keys, fromFile), nil
}

func (s *apiSettings) readCertificate() error {
	if s.flags.TLSCert == "" {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(s.flags.TLSCert, s.flags.TLSKey)
	if err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	s.cert.Store(&cert)
	return nil
}

const fileChanged = "a file has changed"

// watch reloads the keys when their file changes, and all files on SIGHUP, until ctx ends. A file that cannot be read
// changes nothing. before is the state of the file when the keys of srv were read.
func (s *apiSettings) watch(ctx context.Context, srv *api.Server, before []string) {
	t := time.NewTicker(watchInterval)
	defer t.Stop()
	for {
		why := fileChanged
		select {
		case <-ctx.Done():
			return
		case <-s.hangups:
			why = "SIGHUP"
			if s.audit != nil {
				s.logReload("audit log", s.audit.reopen(), why)
			}
			if s.flags.TLSCert != "" {
				s.logReload("certificate", s.readCertificate(), why)
			}
		case <-t.C:
			if slices.Equal(before, fileStates(s.flags.APIKeys)) {
				continue
			}
		}
		before = fileStates(s.flags.APIKeys)
		keys, err := s.flags.keys()
		if err == nil {
			err = srv.SetKeys(keys)
		}
		s.logReload("API keys", err, why)
	}
}

func (s *apiSettings) logReload(what string, err error, why string) {
	if err != nil {
		s.log.Error(what+" not reloaded: the previous version stays in use", "error", err, "reason", why)
		return
	}
	s.log.Info(what+" reloaded", "reason", why)
}

// fileStates returns a text per file that changes when the file changes. It leaves out empty paths.
func fileStates(paths ...string) []string {
	var out []string
	for _, path := range paths {
		if path == "" {
			continue
		}
		state := path
		if info, err := os.Stat(path); err == nil {
			state = fmt.Sprint(info.ModTime(), info.Size(), info.Mode())
		}
		out = append(out, state)
	}
	return out
}

// reopenableFile is an append-only file that can be reopened after log rotation.
type reopenableFile struct {
	path string
	mu   sync.Mutex
	file *os.File
}

func (r *reopenableFile) reopen() error {
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

func (r *reopenableFile) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file.Write(p)
}

func (r *reopenableFile) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.file.Close()
}
