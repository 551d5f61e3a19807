package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/openfiles"
)

// An idle connection is pinged after keepaliveTime (10 s is the minimum for grpc-go clients) and
// closed keepaliveTimeout later.
const (
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
	keepaliveMinimum = 5 * time.Second // servers disconnect clients that ping more often
	maxStreams       = 256             // per connection
	// window is the flow-control window of a stream and of a connection. It is fixed because grpc's
	// estimator pings for every received message, which doubled the packets of a step.
	window = 4 << 20
)

func (s *System) remoteOptions(address string) []remote.ConfigOption {
	return []remote.ConfigOption{
		remote.WithAdvertisedHost(address),
		remote.WithEndpointWriterBatchSize(writerBatch),
		remote.WithEndpointWriterQueueSize(1024), // initial size; the default uses 16 MB per peer
		remote.WithServerOptions(s.serverOptions()...),
		remote.WithDialOptions(append(s.dialOptions(), grpc.WithChainStreamInterceptor(s.outgoing))...),
	}
}

func (s *System) serverOptions() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(s.cfg.ConnectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinimum, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(refuseUnary),
		grpc.ChainStreamInterceptor(s.incoming),
		grpc.UnknownServiceHandler(s.serveControl),
	}
	creds := insecure.NewCredentials()
	if s.cfg.ServerTLS != nil {
		creds = loudCreds{credentials.NewTLS(s.cfg.ServerTLS), s}
	}
	return append(opts, grpc.Creds(boundedCreds{creds, openfiles.NewPendingConns(openfiles.MaxPendingConns())}))
}

func (s *System) dialOptions() []grpc.DialOption {
	creds := insecure.NewCredentials()
	if s.cfg.ClientTLS != nil {
		creds = credentials.NewTLS(s.cfg.ClientTLS)
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return openfiles.Dial(ctx, "tcp", address)
		}),
		grpc.WithNoProxy(), // do not dial cluster peers through HTTPS_PROXY
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 25 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: s.cfg.ConnectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}
}

// boundedCreds limits the number of unauthenticated connections. A certificate authenticates one;
// without TLS, the start of a request does. grpc closes those that take longer than ConnectTimeout.
type boundedCreds struct {
	credentials.TransportCredentials
	pending *openfiles.PendingConns
}

func (c boundedCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	pending := c.pending.Admit(conn)
	secured, info, err := c.TransportCredentials.ServerHandshake(pending)
	switch {
	case err != nil:
		pending.Authenticated() // on an error grpc closes the connection
	case secured == net.Conn(pending):
		return &unauthenticated{PendingConn: pending}, info, nil
	default:
		pending.Authenticated()
	}
	return secured, info, err
}

func (c boundedCreds) Clone() credentials.TransportCredentials {
	return boundedCreds{c.TransportCredentials.Clone(), c.pending}
}

// unauthenticated is a connection without TLS. It counts as unauthenticated until data arrives.
type unauthenticated struct {
	*openfiles.PendingConn
	once sync.Once
}

func (u *unauthenticated) Read(b []byte) (int, error) {
	n, err := u.PendingConn.Read(b)
	if n > 0 {
		u.once.Do(u.Authenticated)
	}
	return n, err
}

// loudCreds logs the reason of a failed handshake, which grpc does not.
type loudCreds struct {
	credentials.TransportCredentials
	s *System
}

func (c loudCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	from := conn.RemoteAddr()
	secured, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		if n := c.s.drops.handshakes.Add(1); isPowerOfTwo(n) {
			c.s.log.Warn("refused a connection", "from", from, "error", security.Explain(err), "refused_so_far", n)
		}
	}
	return secured, info, err
}

func (c loudCreds) Clone() credentials.TransportCredentials {
	return loudCreds{c.TransportCredentials.Clone(), c.s}
}

// certified returns the node id in the certificate of a stream's peer, "" without TLS.
func certified(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", nil
	}
	return certifiedID(p.AuthInfo)
}

func certifiedID(info credentials.AuthInfo) (string, error) {
	t, ok := info.(credentials.TLSInfo)
	if !ok {
		return "", nil
	}
	id, err := security.PeerIdentity(&t.State)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	return id.ID, nil
}

// checkOwnCertificate detects a mismatch between id and certificate at start, where the error is
// easier to understand than at every peer.
func (c *Config) checkOwnCertificate() error {
	if c.ServerTLS == nil || c.ServerTLS.GetCertificate == nil {
		return nil
	}
	cert, err := c.ServerTLS.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		return fmt.Errorf("rpc: own certificate: %w", err)
	}
	if cert.Leaf == nil {
		return nil
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert.Leaf}}
	id, err := security.PeerIdentity(&state)
	if err != nil {
		return fmt.Errorf("%w: own certificate: %w", ErrIdentity, err)
	}
	if id.ID != c.ID {
		return fmt.Errorf("%w: the configured id is %s, but the certificate is for %s", ErrIdentity, c.ID, id)
	}
	return nil
}

// explain converts an error of grpc into one of this package.
func (s *System) explain(address string, err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, address, err)
	}
	switch st.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.Unimplemented:
		return fmt.Errorf("%w: %s is not a compatible shoal process: %s", ErrVersion, address, st.Message())
	}
	if why := security.Explain(errors.New(st.Message())); security.Distrust(why) {
		return fmt.Errorf("rpc: %s: %w", address, why)
	}
	if s.cfg.ClientTLS == nil && strings.Contains(st.Message(), "server preface") {
		return fmt.Errorf("rpc: %s: %w: this process has no cluster key and the peer closed the connection, so the peer probably has one; "+
			"give both the same %s (%s)",
			address, security.ErrPlaintext, security.EnvKey, st.Message())
	}
	if st.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %s: %w: %s", ErrUnreachable, address, context.DeadlineExceeded, st.Message())
	}
	return fmt.Errorf("%w: %s: %s", ErrUnreachable, address, st.Message())
}
