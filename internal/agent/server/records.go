package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"google.golang.org/protobuf/encoding/protojson"
	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// recordsName is the directory of operations in the directory of the agent.
	recordsName = "operations"
	// recordFile contains an operation as of its last change of state, with its outputs once it is final.
	recordFile = "operation.json"
	// maxRecordSize bounds what is read of a record, in bytes. It fits the largest outputs in base64.
	maxRecordSize = 16 << 20
	// maxRecordsRead bounds how many entries of the directory are read.
	maxRecordsRead = 10000
)

// records stores operations on the disk, each in a directory of its own. User programs can write to that disk. Therefore what is read is
// bounded, must be a regular file inside the directory, and must belong to the operation with that id.
type records struct {
	root *os.Root
}

// openRecords opens the directory of operations in the directory of the agent, and creates it when there is none.
func openRecords(agent *os.Root) (*records, error) {
	if err := agent.MkdirAll(recordsName, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of operations: %w", err)
	}
	root, err := agent.OpenRoot(recordsName)
	if err != nil {
		return nil, fmt.Errorf("open the directory of operations: %w", err)
	}
	return &records{root: root}, nil
}

// ids lists the operations that have a directory.
func (r *records) ids() ([]string, error) {
	dir, err := r.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxRecordsRead)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if entry.IsDir() && agentpb.ValidOperationID(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	return ids, nil
}

// create records an operation that begins, in place of anything that is stored under its id.
func (r *records) create(operation *agentpb.Operation) error {
	if err := r.remove(operation.GetId()); err != nil {
		return err
	}
	return r.save(operation, true)
}

// save records the operation. With durable, the record also survives a crash of the machine.
func (r *records) save(operation *agentpb.Operation, durable bool) error {
	content, err := protojson.Marshal(operation)
	if err != nil {
		return fmt.Errorf("encode operation %s: %w", operation.GetId(), err)
	}
	if len(content) > maxRecordSize {
		return fmt.Errorf("record operation %s: %d bytes are more than %d", operation.GetId(), len(content), maxRecordSize)
	}
	if err := r.root.MkdirAll(operation.GetId(), 0o700); err != nil {
		return fmt.Errorf("record operation %s: %w", operation.GetId(), err)
	}
	if err := file.WriteIn(r.root, path.Join(operation.GetId(), recordFile), content, durable); err != nil {
		return fmt.Errorf("record operation %s: %w", operation.GetId(), err)
	}
	return nil
}

// read returns the operation as it was recorded last. The error is fs.ErrNotExist if it was never recorded.
func (r *records) read(id string) (*agentpb.Operation, error) {
	content, err := file.ReadIn(r.root, path.Join(id, recordFile), maxRecordSize)
	if err != nil {
		return nil, fmt.Errorf("read operation %s: %w", id, err)
	}
	return parseRecord(id, content)
}

// remove removes all that is stored of the operation.
func (r *records) remove(id string) error {
	if err := r.root.RemoveAll(id); err != nil {
		return fmt.Errorf("remove operation %s: %w", id, err)
	}
	return nil
}

// parseRecord parses a record and checks that it is of the operation with this id. It ignores fields of newer versions.
func parseRecord(id string, content []byte) (*agentpb.Operation, error) {
	operation := &agentpb.Operation{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(content, operation); err != nil {
		// The error would quote the content, which may hold outputs.
		return nil, fmt.Errorf("record of operation %s is not readable", id)
	}
	if operation.GetId() != id {
		return nil, fmt.Errorf("record of operation %s belongs to another one", id)
	}
	if _, known := agentpb.OperationState_name[int32(operation.GetState())]; !known {
		return nil, fmt.Errorf("record of operation %s has the unknown state %d", id, operation.GetState())
	}
	// Programs can write to the record, too. The controller does not accept larger messages.
	if gproto.Size(withoutOutputs(operation)) > agentpb.MaxOperationSize || gproto.Size(operation) > agentpb.MaxResultSize {
		return nil, fmt.Errorf("record of operation %s is too large to be sent", id)
	}
	return operation, nil
}
