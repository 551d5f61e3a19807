package rpc

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the names and limits that peers must share. Package proto records the messages.
func TestWire(t *testing.T) {
	wiretest.Check(t,
		wiretest.Form{Name: "names", Text: fmt.Sprintln(helloMethod, watchMethod, receiveMethod, envelopeType, replies, kindHello)},
		wiretest.Form{Name: "limits", Text: fmt.Sprintln(MaxPayload, maxErrText, maxMessage)})
}
