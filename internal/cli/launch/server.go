package launch

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// ServerFlags select a running server.
type ServerFlags struct {
	Server string `default:"${server}" help:"Address of the API."`
	APIKey string `name:"api-key" env:"SHOAL_API_KEY" help:"API key of the server, if it requires one."`
	TLSCA  string `name:"tls-ca" type:"path" placeholder:"FILE" help:"File of CA certificates (PEM) to trust for https:// (default: the system's)."`
}

// Client returns a client of the server.
func (f ServerFlags) Client() *client.Client {
	key, _, _ := strings.Cut(f.APIKey, ",") // the environment can hold several keys: use the first
	if key == AutoKey {
		if made, err := ReadKey(AutoKeyFile()); err == nil { // without it the server refuses "auto" as a key
			key = made
		}
	}
	c := &client.Client{Server: f.Server, Key: key}
	if f.TLSCA != "" {
		c.HTTP.Transport = caTransport(f.TLSCA)
	}
	return c
}

// caTransport returns a transport that trusts the CA certificates in a file.
func caTransport(file string) http.RoundTripper {
	pem, err := ui.ReadSmall(file)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(pem) {
		err = fmt.Errorf("%s contains no PEM certificate", file)
	}
	if err != nil {
		return errorTransport{fmt.Errorf("--tls-ca: %w", err)}
	}
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
}

// errorTransport fails every request with the same error.
type errorTransport struct{ error }

func (f errorTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }
