package network

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// Socket is the path of the Unix socket on which a running network accepts commands.
const Socket = "/run/shoal-wire.sock"

const socketTimeout = 15 * time.Second

// Serve answers commands on Socket until ctx ends: one line in, the answer out.
func (n *Network) Serve(ctx context.Context) error {
	if c, err := net.DialTimeout("unix", Socket, socketTimeout); err == nil {
		c.Close()
		return fmt.Errorf("%s: another network runs on this machine", Socket)
	}
	_ = os.Remove(Socket) // of a process that was killed
	l, err := net.Listen("unix", Socket)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		n.answer(ctx, c)
	}
}

func (n *Network) answer(ctx context.Context, c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(socketTimeout))
	line, err := bufio.NewReaderSize(c, 4096).ReadSlice('\n')
	if err != nil {
		return // the client went away, or sent no line
	}
	text, err := n.Control(ctx, strings.Fields(string(line)))
	if err != nil {
		text = "error " + err.Error()
	} else {
		text = "ok " + text
	}
	_, _ = c.Write([]byte(text)) // the client may have gone away
}

// Send sends a command to the running network and returns its answer.
func Send(words []string) (string, error) {
	c, err := net.DialTimeout("unix", Socket, socketTimeout)
	if err != nil {
		return "", fmt.Errorf("no network runs here (%w): start one with `wire up FILE`", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(socketTimeout))
	if _, err := fmt.Fprintln(c, strings.Join(words, " ")); err != nil {
		return "", err
	}
	var b strings.Builder
	if _, err := bufio.NewReader(c).WriteTo(&b); err != nil {
		return "", err
	}
	if text, ok := strings.CutPrefix(b.String(), "ok "); ok {
		return text, nil
	}
	return "", fmt.Errorf("%s", strings.TrimPrefix(b.String(), "error "))
}
