package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// maxWebhookSeconds limits how much longer the way from a push to the success of the Stack, through a webhook, is than the way from the
	// artifact.
	maxWebhookSeconds = 1.5
	webhookToken      = "bench-webhook-token"
)

// benchWebhook measures commits that a git server announces to a Receiver of notification-controller.
func benchWebhook(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	system, err := localsystem.Start(ctx, localsystem.Options{WithNotificationController: true, Log: out})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Stop()) }()
	app, err := system.Deploy(ctx, "pushed", program("first"))
	if err != nil {
		return err
	}
	readyCtx, cancel := context.WithTimeout(ctx, rolloutPatience)
	defer cancel()
	if _, err := system.WaitReady(readyCtx, app); err != nil {
		return err
	}
	url, err := createReceiver(readyCtx, system, app)
	if err != nil {
		return err
	}
	var pushed, seen measure.Samples
	for run := range s.runs + 1 {
		runCtx, cancel := context.WithTimeout(ctx, rolloutPatience)
		rollout, err := system.RolloutBy(runCtx, app, program(fmt.Sprintf("pushed-%d", run)), func(ctx context.Context) error { return push(ctx, url) })
		cancel()
		if err != nil {
			return err
		}
		if run > 0 { // the first one warms up
			pushed, seen = append(pushed, rollout.Succeeded.Sub(rollout.Pushed)), append(seen, rollout.Duration())
		}
	}
	t := measure.NewTable(out, "one commit, announced by a webhook", "median", "min", "max")
	t.Row("push → Stack succeeded", pushed)
	t.Row("new artifact → Stack succeeded", seen)
	t.Flush()
	more := pushed.Median() - seen.Median()
	fmt.Fprintf(out, "the webhook, Flux's notification-controller and source-controller take %s\n", measure.Seconds(more))
	limits.Check("seconds from a push to its artifact, through a webhook", more.Seconds(), maxWebhookSeconds)
	return nil
}

// createReceiver creates a Receiver for the app's GitRepository, and returns the URL of its webhook.
func createReceiver(ctx context.Context, system *localsystem.System, app *localsystem.App) (url string, err error) {
	secret := &corev1.Secret{
		Namespace: app.Namespace, Name: "webhook", StringData: map[string]string{"token": webhookToken},
	}
	receiver := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "notification.toolkit.fluxcd.io/v1", "kind": "Receiver",
		"metadata": map[string]any{"namespace": app.Namespace, "name": "webhook"},
		"spec": map[string]any{
			"type": "generic-hmac", "secretRef": map[string]any{"name": secret.Name},
			"resources": []any{map[string]any{"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "name": app.Name}},
		},
	}}
	for _, object := range []client.Object{secret, receiver} {
		if err := system.Client.Create(ctx, object); err != nil {
			return "", fmt.Errorf("create the webhook: %w", err)
		}
	}
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := system.Client.Get(ctx, client.ObjectKeyFromObject(receiver), receiver); err != nil {
			return false, fmt.Errorf("read the Receiver: %w", err)
		}
		path, _, err := unstructured.NestedString(receiver.Object, "status", "webhookPath")
		url = system.ControlPlane.ReceiverURL + path
		return path != "", err
	})
	return url, err
}

// push calls a webhook as a git server does after a push.
func push(ctx context.Context, url string) error {
	const body = `{"ref": "refs/heads/main"}`
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("call the webhook: %w", err)
	}
	mac := hmac.New(sha256.New, []byte(webhookToken))
	mac.Write([]byte(body))
	request.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("call the webhook: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the webhook answered %s", response.Status)
	}
	return errors.Join(err, response.Body.Close())
}
