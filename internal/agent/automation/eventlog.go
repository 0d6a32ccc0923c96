package automation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	// maxEventSize is the largest event that is accepted, in bytes: one holds the whole old and new state of a resource. It
	// is the limit that pulumi sets for its own messages.
	maxEventSize = 400 << 20
	// eventLogTimeout bounds the end of the event log once pulumi has ended.
	eventLogTimeout = 10 * time.Second
	eventLogFlag    = "--event-log"
)

// eventLog receives the engine's events from one CLI process.
//
// It is not the event stream of the Automation API, for three reasons: that one never closes its channels, and leaves a
// goroutine behind, when the CLI fails before its engine starts; it decodes the whole old and new state of every resource,
// numbers as float64; and it stops the CLI when its reader is slow to come back.
type eventLog struct {
	pulumirpc.UnimplementedEventsServer
	server   *grpc.Server
	address  string
	receive  func(engineEvent)
	finished chan struct{}
}

// newEventLog listens on the loopback interface. receive is called serially.
func newEventLog(receive func(engineEvent)) (*eventLog, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the engine's events: %w", err)
	}
	l := &eventLog{
		server:   grpc.NewServer(grpc.MaxRecvMsgSize(maxEventSize)),
		address:  "tcp://" + listener.Addr().String(),
		receive:  receive,
		finished: make(chan struct{}),
	}
	pulumirpc.RegisterEventsServer(l.server, l)
	go func() {
		defer close(l.finished)
		// It ends when close stops the server.
		_ = l.server.Serve(listener)
	}()
	return l, nil
}

// StreamEvents implements the service that the CLI reports to. An event that cannot be decoded is skipped: the outcome
// does not depend on any.
func (l *eventLog) StreamEvents(stream pulumirpc.Events_StreamEventsServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&emptypb.Empty{})
		}
		if err != nil {
			return err
		}
		var event engineEvent
		if json.Unmarshal([]byte(request.GetEvent()), &event) != nil {
			continue
		}
		l.receive(event)
	}
}

// close waits until everything that the CLI sent has been received. The CLI has ended, so no more is to come.
func (l *eventLog) close() {
	stopped := make(chan struct{})
	go func() {
		l.server.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(eventLogTimeout):
		l.server.Stop()
		<-stopped
	}
	<-l.finished
}
