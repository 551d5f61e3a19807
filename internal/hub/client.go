package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// client sends requests. It never gives a token to another host than the one it is for,
// and it retries only through retry.
type client struct {
	http  *http.Client
	stall time.Duration
	base  time.Duration // the first pause of a retry
}

const (
	maxRedirects   = 10
	maxPause       = 30 * time.Second
	maxRetryAfter  = 5 * time.Minute
	requestTries   = 5 // of a request for metadata
	downloadTries  = 8 // of a file, without progress in between
	progressBytes  = 64 << 10
	userAgent      = "shoal"
	connectTimeout = 15 * time.Second
)

func newClient(s Settings) *client {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		ResponseHeaderTimeout:  s.AnswerTimeout,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConnsPerHost:    connections,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // a range of a compressed answer is not a range of the file
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: 256 << 10,
	}
	return &client{http: &http.Client{Transport: t, CheckRedirect: checkRedirect}, stall: s.StallTimeout, base: 500 * time.Millisecond}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// checkRedirect allows a redirect and takes the token away when it leaves the origin: a
// port is part of it, unlike in net/http.
func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("%w: more than %d redirects", ErrProtocol, maxRedirects)
	case req.URL.Scheme != "http" && req.URL.Scheme != "https":
		return fmt.Errorf("%w: a redirect to the scheme %s", ErrProtocol, req.URL.Scheme)
	case via[0].URL.Scheme == "https" && req.URL.Scheme == "http":
		return fmt.Errorf("%w: a redirect from https to http, to %s", ErrProtocol, req.URL.Host)
	}
	for _, r := range via {
		if !sameOrigin(req.URL, r.URL) {
			req.Header.Del("Authorization")
		}
	}
	req.Header.Del("Referer") // a signed URL is a secret
	return nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// transient is an error that may be gone at the next try.
type transient struct {
	err   error
	after time.Duration // the server asked for this pause
}

func (t *transient) Error() string { return t.err.Error() }
func (t *transient) Unwrap() error { return t.err }

// statusError is an answer that is not 2xx.
type statusError struct {
	host    string
	status  int
	code    string // X-Error-Code
	message string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s answered %d %s", e.host, e.status, http.StatusText(e.status))
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

// do sends one request, once. An answer that is not 2xx is an error; refused, if not nil,
// gets its header.
func (c *client) do(req *http.Request, refused func(http.Header)) (*http.Response, error) {
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.networkError(req, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	if refused != nil {
		refused(resp.Header)
	}
	e := &statusError{host: resp.Request.URL.Host, status: resp.StatusCode, code: resp.Header.Get("X-Error-Code"),
		message: clean(resp.Header.Get("X-Error-Message"))}
	if e.message == "" {
		text, _ := io.ReadAll(io.LimitReader(newStallReader(resp.Body, resp.Body.Close, c.stall), 512)) // a help for people only
		e.message = clean(string(text))
	}
	switch e.status {
	case http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		after := retryAfter(resp.Header, time.Now())
		if after > maxRetryAfter {
			return nil, fmt.Errorf("%w: %w, and requires a pause of %s: try again then; a token (HF_TOKEN) raises the hub's limits",
				ErrUnreachable, e, after.Round(time.Second))
		}
		return nil, &transient{fmt.Errorf("%w: %w", ErrUnreachable, e), after}
	}
	return nil, e
}

// clean makes foreign text fit for one line of a terminal.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.Join(strings.Fields(s), " ")
	if strings.HasPrefix(s, "<") { // a page for browsers
		return ""
	}
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "..."
	}
	return s
}

// networkError returns the error for a request without an answer: transient if a retry can help.
func (c *client) networkError(req *http.Request, err error) error {
	if cause := context.Cause(req.Context()); cause != nil && !errors.Is(cause, errStalled) {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // its text repeats the whole URL, which may be signed
	}
	if errors.Is(err, ErrProtocol) {
		return err
	}
	host := req.URL.Host
	var unknown x509.UnknownAuthorityError
	var verify *tls.CertificateVerificationError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknown) && noRoots():
		return fmt.Errorf("%w: this machine has no CA certificates, so the one of %s cannot be checked: install them (Debian: apt-get install "+
			"ca-certificates), or name a file of them in SSL_CERT_FILE", ErrUnreachable, host)
	case errors.As(err, &verify):
		return fmt.Errorf("%w: the certificate of %s: %w; behind a proxy that opens TLS, name the file of its CA in SSL_CERT_FILE",
			ErrUnreachable, host, verify.Err)
	case errors.As(err, &dns) && dns.IsNotFound:
		return &transient{err: fmt.Errorf("%w: there is no host %s, or no network: check the name, and HTTPS_PROXY where a proxy is needed",
			ErrUnreachable, dns.Name)}
	}
	return &transient{err: fmt.Errorf("%w: %s: %w", ErrUnreachable, host, err)}
}

// noRoots reports whether the system has no CA certificates at all.
func noRoots() bool {
	pool, err := x509.SystemCertPool()
	return err != nil || pool.Equal(x509.NewCertPool())
}

// retryAfter returns the pause in the header Retry-After, in seconds or as a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// pause returns how long to wait before try n, from 1 on.
func pause(base time.Duration, n int, requested time.Duration) time.Duration {
	p := min(base<<min(n-1, 10), maxPause)
	p = p/2 + rand.N(p/2+1) // jitter, so that clients do not retry at the same time
	return max(p, requested)
}

// retry calls try until it succeeds, fails for good, or has failed tries times without
// progress. It calls wait with the reason before a pause, and with "" after it.
func (c *client) retry(ctx context.Context, tries int, wait func(string), try func() (moved bool, err error)) error {
	for failed := 0; ; {
		moved, err := try()
		var t *transient
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &t):
			return err
		}
		if moved {
			failed = 0
		}
		if failed++; failed >= tries {
			return fmt.Errorf("%w (%d tries)", t.err, tries)
		}
		p := pause(c.base, failed, t.after)
		if wait != nil {
			wait(fmt.Sprintf("%s; next try in %s", strings.TrimPrefix(t.Error(), "hub: "), p.Round(100*time.Millisecond)))
		}
		timer := time.NewTimer(p)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		if wait != nil {
			wait("")
		}
	}
}

var errStalled = errors.New("the connection stands still")

// stallReader ends a body that brings less than 1 KiB in a while.
type stallReader struct {
	r     io.Reader
	timer *time.Timer
	d     time.Duration
	some  int // bytes since the timer was set
	ended chan struct{}
}

func newStallReader(r io.Reader, end func() error, d time.Duration) *stallReader {
	s := &stallReader{r: r, d: d, ended: make(chan struct{})}
	s.timer = time.AfterFunc(d, func() { close(s.ended); _ = end() }) // a Read that waits fails
	return s
}

func (s *stallReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	select {
	case <-s.ended:
		return n, fmt.Errorf("%w for %s", errStalled, s.d)
	default:
	}
	if err != nil {
		s.timer.Stop()
	} else if s.some += n; s.some >= 1<<10 && s.timer.Stop() {
		s.timer.Reset(s.d)
		s.some = 0
	}
	return n, err
}

func (s *stallReader) stop() { s.timer.Stop() }

// fetchBody returns the whole body of a small response. request makes a new request for each try.
func (c *client) fetchBody(ctx context.Context, limit int64, request func() (*http.Request, error),
	send func(*http.Request) (*http.Response, error)) (body []byte, err error) {
	err = c.retry(ctx, requestTries, nil, func() (bool, error) {
		req, err := request()
		if err != nil {
			return false, err
		}
		resp, err := send(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		r := newStallReader(resp.Body, resp.Body.Close, c.stall)
		defer r.stop()
		body, err = readAtMost(r, limit)
		if errors.Is(err, errTooLong) {
			return false, fmt.Errorf("%w: %s sent %w", ErrProtocol, req.URL.Host, err)
		} else if err != nil {
			return false, &transient{err: fmt.Errorf("%w: %s: %w", ErrUnreachable, req.URL.Host, err)}
		}
		return false, nil
	})
	return body, err
}
