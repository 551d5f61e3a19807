package rpc

import "github.com/shoal-llm/shoal/internal/wire"

// Version and MinVersion are the newest and oldest wire version that this build reads (package
// wire).
const (
	Version    = wire.Version
	MinVersion = wire.MinVersion
)
