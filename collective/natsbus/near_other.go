//go:build !linux

package natsbus

import (
	"context"
	"errors"
	"net"
	"time"
)

var errNoNear = errors.New("natsbus: abstract Unix sockets are Linux's")

func listenNear() (*net.UnixListener, string, error)          { return nil, "", errNoNear }
func dialNear(context.Context, string) (*net.UnixConn, error) { return nil, errNoNear }
func sameUser(*net.UnixConn) bool                             { return false }
func ownDescriptor(*net.UnixConn) (int, error)                { return 0, errNoNear }
func writeNow(int, [][]byte) (int, error)                     { return 0, errNoNear }
func awaitRoom(int, time.Duration)                            {}
func closeNow(int, bool)                                      {}
