package natsbus

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
)

// inbox parses the byte stream of a server, in pieces of any size.
type inbox struct {
	pool    *buffers
	deliver func(sid int, msg []byte)
	ping    func()

	buf  []byte // buf[at:end) is not parsed yet
	at   int
	end  int
	sid  int    // of msg
	msg  []byte // an incomplete message, or nil
	have int    // bytes of msg received so far
}

// from reads and parses until read fails. A later call continues at the same place.
func (in *inbox) from(read func([]byte) (int, error)) (err error) {
	for {
		if e := in.lines(); e != nil || err != nil {
			return cmp.Or(e, err)
		}
		var n int
		if in.have < len(in.msg) { // directly into the message
			n, err = read(in.msg[in.have:])
			in.have += n
			continue
		}
		in.at, in.end = 0, copy(in.buf, in.buf[in.at:in.end])
		if in.end == len(in.buf) {
			return fmt.Errorf("natsbus: a line that begins with %.20q: %w", in.buf, bufio.ErrBufferFull)
		}
		n, err = read(in.buf[in.end:])
		in.end += n
	}
}

// lines parses the complete lines.
func (in *inbox) lines() error {
	for {
		n := copy(in.msg[in.have:], in.buf[in.at:in.end])
		in.have += n
		in.at += n
		if in.have < len(in.msg) {
			return nil
		}
		n = bytes.IndexByte(in.buf[in.at:in.end], '\n')
		if n < 0 {
			return nil
		}
		line := bytes.TrimRight(in.buf[in.at:in.at+n], "\r")
		in.at += n + 1
		if msg := in.msg; msg != nil {
			if len(line) > 0 {
				return errors.New("natsbus: a message that does not end where it should")
			}
			in.msg, in.have = nil, 0
			in.deliver(in.sid, msg)
			continue
		}
		if err := in.line(line); err != nil {
			return err
		}
	}
}

func (in *inbox) line(line []byte) error {
	if args, ok := bytes.CutPrefix(line, []byte("MSG ")); ok {
		sid, n, ok := messageArgs(args)
		if !ok || n > maxPayload {
			return fmt.Errorf("natsbus: %.80q is not a message", line)
		}
		in.sid, in.msg = sid, in.pool.take(n)
	} else if string(line) == "PING" {
		in.ping()
	} else if e, ok := bytes.CutPrefix(line, []byte("-ERR ")); ok {
		return refusal(string(e))
	}
	return nil
}

// messageArgs reads "subject sid [reply] size".
func messageArgs(b []byte) (sid, n int, ok bool) {
	_, b, ok = bytes.Cut(b, []byte{' '})
	if !ok {
		return 0, 0, false
	}
	first, last := bytes.IndexByte(b, ' '), bytes.LastIndexByte(b, ' ')
	if first < 0 {
		return 0, 0, false
	}
	sid, n = number(b[:first]), number(b[last+1:])
	return sid, n, sid >= 0 && n >= 0
}

func number(b []byte) int {
	if len(b) == 0 || len(b) > 9 {
		return -1
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return -1
		}
		n = 10*n + int(c-'0')
	}
	return n
}
