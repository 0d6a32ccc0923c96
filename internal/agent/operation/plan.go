package operation

import (
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/file"
)

// A plan is what a preview found out, with the plan file that Pulumi writes. Pulumi checks an up against that file, step by step, but it
// does not notice that the state has changed, and it does not know the inputs. So a plan has three digests, and the operation that carries
// out the plan compares them first:
//
//   - of the inputs: the request with the values that only the agent knows, and the version of the CLI;
//   - of the changes: each step that changes something, with the old and the new inputs of the resource, as the engine's events show them.
//     All secrets look the same there; those of the configuration are part of the inputs;
//   - of the state: the bytes of `pulumi stack export`, which every update changes.
//
// An up with Pulumi's plan file also makes its preview, under the lock of the update, and Pulumi checks the preview against the plan as
// well: what is not in the plan is refused before anything is changed. For a destroy there is no such file: its preview is made again and
// compared.

// Names of the files that an operation leaves in Paths.Results when it saves a plan, both compressed with gzip.
const (
	// PlanFile is Pulumi's plan file. It does not exist when the request does not want it.
	PlanFile = "plan.json.gz"
	// PlanText describes the changes for people. It contains values, but no secret.
	PlanText = "changes.txt.gz"
)

// plainPlanFile is the plan file that Pulumi writes and reads.
const plainPlanFile = "plan.json"

// carriesOutPlan reports whether the operation carries out a plan.
func (o *operation) carriesOutPlan() bool {
	return o.request.GetKind().Planned()
}

// savesPlan reports whether the operation keeps what it would change as a plan.
func (o *operation) savesPlan() bool {
	return o.request.GetPlan() != nil && !o.carriesOutPlan()
}

// usesPlanFile reports whether Pulumi checks the operation against its plan file.
func (o *operation) usesPlanFile() bool {
	return o.request.GetKind() == agentpb.OperationKind_OPERATION_KIND_PLANNED_UP && !o.request.GetPlan().GetWithoutFile()
}

// planArguments returns the arguments of an operation that writes or reads Pulumi's plan file.
func (o *operation) planArguments() []string {
	switch {
	case o.usesPlanFile():
		return []string{"--plan=" + o.planFilePath()}
	case o.savesPlan() && o.kind() == agentpb.OperationKind_OPERATION_KIND_PREVIEW && !o.request.GetPlan().GetWithoutFile():
		return []string{"--save-plan=" + o.planFilePath()}
	}
	return nil
}

func (o *operation) planFilePath() string {
	return filepath.Join(o.stack.Dir, plainPlanFile)
}

// removePlan removes Pulumi's plan file, which has values in clear text.
func (o *operation) removePlan() {
	if o.stack != nil && o.request.GetPlan() != nil {
		_ = os.Remove(o.planFilePath())
	}
}

func stale(format string, args ...any) *failure {
	return failed(agentpb.FailureReason_FAILURE_REASON_PLAN_STALE, format+"; nothing was changed", args...)
}

// checkInputs refuses to carry out a plan that was made from other inputs. It runs before any process starts: with another program, already
// the installation of its dependencies and the address of its backend are not what was approved.
func (o *operation) checkInputs(context.Context) error {
	if !o.carriesOutPlan() {
		return nil
	}
	inputs, _, err := o.inputDigests()
	if err != nil {
		return err
	}
	if inputs != o.request.GetPlan().GetExpected().GetInputs() {
		return stale("the program, the configuration, the environment, the options or the pulumi CLI (%s) are not those that the plan was made with",
			o.runner.Version())
	}
	return nil
}

// checkPlan refuses to carry out a plan that was made from another state. It runs before everything that could change the state, except the
// creation of a stack that does not exist.
func (o *operation) checkPlan(ctx context.Context) error {
	if !o.carriesOutPlan() {
		return nil
	}
	if o.kind() == agentpb.OperationKind_OPERATION_KIND_DESTROY {
		return nil // checkDestroy compares its state last
	}
	if err := o.checkState(ctx); err != nil || !o.usesPlanFile() {
		return err
	}
	return expandPlan(o.paths.Plan, o.planFilePath(), o.request.GetPlan().GetFileDigest())
}

// checkState returns an error when the state is not that of the plan.
func (o *operation) checkState(ctx context.Context) error {
	current, err := o.stateDigest(ctx)
	switch {
	case err != nil:
		return err
	case current == "" && !o.request.GetCreateStack():
		return failed(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, "no stack named '%s' found", o.stack.Name)
	case current != o.request.GetPlan().GetExpected().GetState():
		return stale("the state of the stack is not the one that the plan was made for: somebody changed it since")
	}
	return nil
}

// beginPlan returns the record of the changes for a plan that is saved; nil when none is. For a destroy that carries out a plan, it makes and
// compares the record.
func (o *operation) beginPlan(ctx context.Context) (*planRecord, error) {
	destroys := o.carriesOutPlan() && o.kind() == agentpb.OperationKind_OPERATION_KIND_DESTROY
	if !o.savesPlan() && !destroys {
		return nil, nil
	}
	inputs, values, err := o.inputDigests()
	if err != nil {
		return nil, err
	}
	record := newPlanRecord(o.request.GetPlan().GetKey(), values, o.redactor)
	record.inputs = inputs
	record.internalsUnbound = len(o.planArguments()) > 0 && cli.PlansWithoutInternals.In(o.runner.cli.Version)
	if destroys {
		return nil, o.checkDestroy(ctx, record)
	}
	record.state, err = o.stateDigest(ctx)
	if err == nil && record.state == "" && o.request.GetCreateStack() {
		// A plan is bound to a state, so there has to be a stack.
		if err = o.createStack(ctx); err == nil {
			record.state, err = o.stateDigest(ctx)
		}
	}
	return record, err
}

// checkDestroy compares what a destroy would do with its plan, and then the state.
func (o *operation) checkDestroy(ctx context.Context, record *planRecord) error {
	o.report.update(func(op *agentpb.Operation) { op.Message = "comparing what would be destroyed with the plan" })
	preview := *o
	preview.request = gproto.CloneOf(o.request)
	preview.request.Kind, preview.request.Plan = agentpb.OperationKind_OPERATION_KIND_DESTROY_PREVIEW, nil
	args, err := preview.arguments()
	if err != nil {
		return err
	}
	_, _, err = o.command(ctx, engineCommand{args: args, plan: record})
	if f, known := errors.AsType[*failure](err); known {
		f.message = "cannot compare what would be destroyed with the plan: " + f.message
	}
	if err != nil {
		return err
	}
	if record.changesDigest() != o.request.GetPlan().GetExpected().GetChanges() {
		return stale("what would be destroyed is not what the plan says")
	}
	return o.checkState(ctx)
}

// recheckedAfter is how long a preview may take without the state being read again, which costs as much as a third of a short preview. The
// operation that carries out the plan compares the state with the one before the preview in any case.
const recheckedAfter = 5 * time.Second

// savePlan keeps what the preview found out. If the state changed in the meantime, the plan is worthless.
func (o *operation) savePlan(ctx context.Context, record *planRecord) error {
	if o.ran.AsDuration() > recheckedAfter {
		after, err := o.stateDigest(ctx)
		if err != nil {
			return err
		}
		if after != record.state {
			return stale("the state of the stack changed while the plan was made")
		}
	}
	text, err := record.text(o.report.operation.GetResourceChanges())
	if err != nil {
		return fmt.Errorf("describe the plan: %w", err)
	}
	if err := file.Write(filepath.Join(o.paths.Results, PlanText), text); err != nil {
		return fmt.Errorf("keep the plan: %w", err)
	}
	var size int64
	if len(o.planArguments()) > 0 {
		if size, err = compressPlan(o.planFilePath(), filepath.Join(o.paths.Results, PlanFile)); err != nil {
			return err
		}
	}
	plan := &agentpb.Plan{
		Digests: &agentpb.PlanDigests{
			Inputs: record.inputs, Values: record.values, Changes: record.changesDigest(), State: record.state,
		},
		PulumiVersion: o.runner.Version(), Size: size, Unknowns: record.unknowns,
	}
	o.report.update(func(op *agentpb.Operation) { op.Plan = plan })
	return nil
}

// inputDigests returns the digest of everything that decides what the operation does, except the state and the world outside: the request,
// with the values that only the agent knows, and the version of the CLI. What differs between a preview and the operation that carries out
// its plan is left out, and so is what does not change the outcome. A new field of the request counts until it is left out here. The digest
// of the values leaves out the program, which the controller compares by its content, and the options in which a correction of drift differs
// from an update.
func (o *operation) inputDigests() (inputs, values string, err error) {
	request := gproto.CloneOf(o.request)
	request.Id, request.Plan, request.Timeout, request.CancelGrace, request.CommitMetadata = "", nil, nil, nil, nil
	request.CreateStack, request.NewStack, request.AfterInterruption, request.Interrupted = false, false, false, nil
	if request.Login != nil {
		request.Login.Expiration = nil // it comes from the timeout
	}
	request.Kind = agentpb.OperationKind_OPERATION_KIND_DESTROY
	if o.kind() == agentpb.OperationKind_OPERATION_KIND_UP || o.kind() == agentpb.OperationKind_OPERATION_KIND_PREVIEW {
		request.Kind = agentpb.OperationKind_OPERATION_KIND_UP
	}
	if request.Options != nil {
		request.Options.Message, request.Options.Parallel, request.Options.LogLevel, request.Options.ExpectNoChanges = "", 0, 0, false
	}
	if inputs, err = o.describedBy(request); err != nil {
		return "", "", err
	}
	request.Source = nil
	if options := request.Options; options != nil {
		options.Target, options.TargetDependents, options.Refresh, options.ExpectNoRefreshChanges = nil, false, false, false
	}
	values, err = o.describedBy(request)
	return inputs, values, err
}

// describedBy returns the digest of the request, with the values that only the agent knows. The content of a file that is an environment
// variable does not count, only its path: it is a token that changes every hour.
func (o *operation) describedBy(request *agentpb.StartOperationRequest) (string, error) {
	user := maps.Clone(o.user)
	for _, variable := range request.GetEnv() {
		if variable.GetFromFile() != "" {
			delete(user, variable.GetName())
		}
	}
	encoded, err := gproto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return "", errors.New("the inputs of the plan cannot be described")
	}
	described, err := json.Marshal([]any{o.runner.Version(), encoded, user, o.items})
	if err != nil {
		return "", errors.New("the inputs of the plan cannot be described")
	}
	return digestOf(o.request.GetPlan().GetKey(), described), nil
}

// digestOf is the keyed digest of the content, in hex.
func digestOf(key, content []byte) string {
	hash := hmac.New(sha256.New, key)
	hash.Write(content)
	return hex.EncodeToString(hash.Sum(nil))
}

// stateDigest is the digest of the state, empty when there is no stack.
func (o *operation) stateDigest(ctx context.Context) (string, error) {
	path := filepath.Join(o.stack.Dir, "state.json")
	defer os.Remove(path)
	if exists, err := o.exportTo(ctx, path); err != nil || !exists {
		return "", err
	}
	state, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the exported state: %w", file.WithoutPath(err))
	}
	defer state.Close()
	hash := hmac.New(sha256.New, o.request.GetPlan().GetKey())
	if _, err := io.Copy(hash, state); err != nil {
		return "", fmt.Errorf("read the exported state: %w", file.WithoutPath(err))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// compressPlan compresses Pulumi's file, and returns its size in bytes.
func compressPlan(from, to string) (size int64, err error) {
	plain, err := os.Open(from)
	if err != nil {
		return 0, fmt.Errorf("read the plan of pulumi: %w", file.WithoutPath(err))
	}
	defer plain.Close()
	tooLarge := failed(agentpb.FailureReason_FAILURE_REASON_PLAN_TOO_LARGE,
		"the plan of pulumi is too large to be kept: it may have %d MiB, and compressed %d KiB. Use `enforce: Inputs`, which needs no such file",
		agentpb.MaxPlanFile>>20, agentpb.MaxPlanSize>>10)
	compressed, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, fmt.Errorf("keep the plan: %w", file.WithoutPath(err))
	}
	defer func() {
		if closed := compressed.Close(); err == nil && closed != nil {
			err = fmt.Errorf("keep the plan: %w", file.WithoutPath(closed))
		}
	}()
	limited := &limitedWriter{to: compressed, left: agentpb.MaxPlanSize, exceeded: tooLarge}
	zip := gzip.NewWriter(limited)
	size, err = io.Copy(zip, file.NewReader(plain, agentpb.MaxPlanFile, tooLarge))
	if err = errors.Join(err, zip.Close()); errors.Is(err, tooLarge) {
		return 0, tooLarge
	}
	return size, errors.Join(err, file.WithoutPath(compressed.Sync()))
}

// expandPlan undoes compressPlan. It checks the digest of the compressed file, because programs can write to the place where it is.
func expandPlan(from, to, digest string) (err error) {
	unusable := stale("the plan cannot be read, or is not as it was saved")
	compressed, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("read the plan: %w", file.WithoutPath(err))
	}
	defer compressed.Close()
	hash := sha256.New()
	hashed := io.TeeReader(compressed, hash)
	zip, err := gzip.NewReader(hashed)
	if err != nil {
		return unusable
	}
	plain, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the plan: %w", file.WithoutPath(err))
	}
	defer func() {
		if closed := plain.Close(); err == nil && closed != nil {
			err = fmt.Errorf("write the plan: %w", file.WithoutPath(closed))
		}
	}()
	if _, err := io.Copy(plain, file.NewReader(zip, agentpb.MaxPlanFile, unusable)); err != nil {
		if problem, ok := errors.AsType[*fs.PathError](err); ok {
			return fmt.Errorf("write the plan: %w", problem.Err)
		}
		return unusable
	}
	// Bytes after the compressed content count as well.
	if _, err := io.Copy(io.Discard, hashed); err != nil || "sha256:"+hex.EncodeToString(hash.Sum(nil)) != digest {
		return unusable
	}
	return nil
}

// limitedWriter fails when more than left bytes are written.
type limitedWriter struct {
	to       io.Writer
	left     int
	exceeded error
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, w.exceeded
	}
	return w.to.Write(p)
}
