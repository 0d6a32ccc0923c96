package logs_test

const intro = `# Logs

The controller and the agents write JSON lines. This page lists all messages, for searches and for alerts on logs. Start with the
status and the events of an object, which say more about it: see [troubleshooting](troubleshooting.md).

` + "```sh" + `
kubectl logs deployment/stack-controller -n flux-system | grep '"name":"network"'      # all about the objects of this name
kubectl logs deployment/stack-controller -n flux-system | grep '"level":"error"'
kubectl logs network-workspace-0 -c pulumi                                             # the agent, and all that pulumi prints
` + "```" + `

Values that are known to be secret are masked. With the process runtime, the lines of agents are in files ` + "`agent.log`" + `, by
default ` + "`/data/workspaces/ID/agent.log`" + ` on the machine of the controller.
`

const controllerIntro = `Each [event](troubleshooting.md#events) is a line too: the message is that of the event, and the level is ` + "`error`" + ` for a warning. So
the log has a line for each decision that changed something: an update that starts or ends, a problem, a release. The keys are those of
Flux's controllers:

| Key | Value |
|-----|-------|
| ` + "`controllerKind`, `Stack` (or another kind)" + ` | The kind of the object, and its name and namespace together |
| ` + "`namespace`, `name`" + ` | Those of the object |
| ` + "`reason`, `severity`" + ` | Of the event; the severity is ` + "`info` or `error`" + ` |
| ` + "`revision`, `originRevision`" + ` | The revision of the source, and the commit that it was made from if that is another one |
| ` + "`token`" + ` | The UID of the Update, which is the id of the operation in the log of the agent |
| ` + "`controller`, `controllerGroup`, `reconcileID`" + ` | In lines of a reconcile |

An error of a reconcile that is neither an event nor in the status has the message ` + "`Reconciler error`" + ` and the key ` + "`error`" + `, as in all
controllers that use controller-runtime. The reconcile is repeated. If that does not end, the error says which request the API server
refuses.

`

const agentIntro = `The agent logs in the container ` + "`pulumi`" + ` of the pod of the Workspace. The lines of Pulumi are among its lines: they have the key
` + "`stream`" + `. The value of ` + "`operation`" + ` is the UID of the Update.

`

// meanings explains the messages, and what the reader can do.
var meanings = map[string]string{
	"starting":          "The controller starts, and has this version.",
	"decided":           "What a reconcile of a Stack or an Update decided, why, and what brings the object back.",
	"warning: …":        "The controller runs Pulumi programs itself (`--workspace-runtime=process`). They have its rights.",
	"replacing the pod": "The pod of a Workspace does not become what it should be; `reason` says why. No operation runs in it.",
	"no complete answer from the server of an artifact":                                     "The host in the URL of an artifact cannot be reached, or breaks off. See the problem in the line; check source-controller, DNS and NetworkPolicies.",
	"cannot change the pod, trying again":                                                   "The API server, often a webhook, refuses to delete the pod of a Workspace, or to change its StatefulSet; `problem` says why. A pod that only has an outdated agent goes on with it.",
	"cannot apply an object of a workspace, whose pod stays as it is; trying again":         "The API server, or a webhook, does not accept the StatefulSet or the Service; `problem` says why. The pod is what its Workspace wants, so operations go on in it.",
	"cannot read the events about a pod, so its status may lack the cause":                  "`problem` says why. While a pod is missing or starts slowly, its Workspace says so, but not why.",
	"no mutual TLS with the server of an artifact":                                          "See [what the status says](mutual-tls.md#what-the-status-says). Unlike the status, `problem` also names the ID of the server.",
	"received a SPIFFE identity":                                                            "The identity for [mutual TLS](mutual-tls.md) came or was renewed.",
	"waiting for a SPIFFE identity":                                                         "The controller is not ready: `error` says what the SPIFFE Workload API answers. If no identity is issued, register the controller; else look at the agent of SPIRE on the node.",
	"the SPIFFE Workload API has failed; the identity is still valid":                       "Nothing yet, if the Workload API comes back before `expires`.",
	"the SPIFFE identity is not renewed and will expire":                                    "The SPIFFE Workload API should have renewed the identity. Look at the agent of SPIRE on the node, before `expires`.",
	"the SPIFFE identity has expired and is not renewed":                                    "No artifact can be fetched over mutual TLS. Look at the agent of SPIRE on the node.",
	"content does not have its digest":                                                      "An artifact is not what its source says. It is not used, and fetched again. If this repeats, look for a proxy that changes content, and at source-controller.",
	"a panic was caught":                                                                    "A defect of the controller, caused by the content of an object. A reconcile is repeated with backoff; an event of a watch is skipped. Please report the value of `stack`.",
	"cannot fetch or check an artifact":                                                     "A defect of the controller, caused by the content of a source. The source counts as failed. Please report the value of `stack`.",
	"cannot make an artifact":                                                               "A defect of the controller, caused by the content of a source. The source counts as failed. Please report the value of `stack`.",
	"cannot read the files of an artifact":                                                  "A defect of the controller, caused by the content of a source. The Stack reports an error. Please report the value of `stack`.",
	"cannot poll a repository":                                                              "A defect of the controller, caused by the answer of a git server. Please report the value of `stack`.",
	"cannot read a git repository":                                                          "A git server refuses or does not answer; `problem` says why, as the Stacks that use the repository do. `detail` is the text of the connection or the server, which only the log has.",
	"symbolic links of a commit are left out, because they lead to no file of the commit":   "The program runs without these files. If it needs them, replace the links by files, see [symbolic links](../spec/v1/stacks.md#symbolic-links).",
	"cannot make the artifact of a commit":                                                  "The checkout of a commit failed. The Stacks that use it say so too.",
	"cannot evict an artifact":                                                              "A file of the store of artifacts cannot be removed. Look at the volume of the controller.",
	"cannot remove a stored artifact":                                                       "A file of the store of artifacts cannot be removed. Look at the volume of the controller.",
	"removing a stored artifact":                                                            "A stored artifact was damaged, as the key `error` says. It is fetched again. If this repeats, look at the volume of the controller.",
	"cannot look for drift, trying again":                                                   "A check for drift could not be created, read or removed. The status of the Stack says so too.",
	"cannot list the Stacks to wake":                                                        "A change may reach its Stacks only with their next `resyncFrequency`.",
	"an event does not list what a preview would change":                                    "The result of a preview could not be read once more. `flux pulumi diff` shows the changes, and so does the status of the Update `update`.",
	"cannot find the stackrollouts of a source":                                             "A new revision may reach its StackRollouts only when they are reconciled the next time.",
	"cannot find the stacks of a source":                                                    "A new revision may reach StackRollouts whose Stacks have sources of their own only when they are reconciled the next time.",
	"cannot find the stackrollouts that select namespaces":                                  "A new label of a Namespace may reach its StackRollouts only when they are reconciled the next time.",
	"cannot find the stacks of a namespace":                                                 "A new label of a Namespace may reach its Stacks only when they are reconciled the next time.",
	"cannot read a large stack that has to be checked":                                      "A wave waits for its `check` of this Stack, which is tried again every second. `error` says why.",
	"cannot watch Namespaces, so nothing is selected by their labels: allow list and watch": "A StackRollout selects by the labels of Namespaces. Grant the controller the rights, or select by other means.",
	"cannot watch Namespaces":                                                               "`error` says why. StackRollouts that select by the labels of Namespaces wait. It is tried again every ten seconds.",
	"cannot find the updates to reconcile":                                                  "A change may reach its Updates only when they are reconciled the next time.",
	"cannot find the workspace of an update":                                                "The Workspace may learn of the Update only when it is reconciled the next time.",
	"cannot read the update that an approval names":                                         "An Approval may wake its Stack only when the Stack is reconciled the next time.",
	"cannot read a stack that may have to be woken":                                         "A change may reach the Stack only with its next `resyncFrequency`.",
	"cannot record an event without a reference to its object":                              "A defect of the controller. Please report it.",
	"events were not delivered to notification-controller":                                  "Alerts miss events: `outcome` and `error` say why. Look at notification-controller, its network policy, and `--events-addr`. At most one line a minute for each outcome; the metric `stack_controller_notifications_total` has all.",
	"traces were not delivered":                                                             "With `--enable-tracing`: the collector does not answer or refuses; `error` says why. Look at `OTEL_EXPORTER_OTLP_ENDPOINT`. At most one line a minute. Updates do not wait for it.",
	"cannot watch Secrets and ConfigMaps, so their changes cause no update: allow list and watch, or set --watch-configs-label-selector=none": "As it says. The ClusterRole of the manifests allows both.",
	"cannot watch the objects of a kind, so they are polled: allow list and watch":                                                            "Stacks that depend on such objects notice a change late. Grant the controller the rights for the kind, or remove it from `--dependency-kinds`.",
	"cannot watch the objects of a kind":                                                                  "`error` says why. Stacks that depend on such objects notice a change late. The next one that waits tries again.",
	"cannot watch the sources of a kind, so they are polled: allow list and watch":                        "Stacks notice a new artifact up to `--requeue-dependency` late, and each of them reads its source at this interval. Grant the controller the rights for the kind.",
	"cannot watch the sources of a kind":                                                                  "`error` says why. Stacks with such a source notice a new artifact late. The next one that reads its source tries again.",
	"the agent did not forget the operation, trying again":                                                "An Update is deleted, and its agent cannot be reached.",
	"the agent did not forget the operation; it removes old ones itself":                                  "An Update is deleted. Nothing to do.",
	"the work for an update ended early":                                                                  "A defect of the controller, caused by what an agent answered. The work begins again after a minute. Please report the value of `stack`.",
	"the watch of the operation ended early":                                                              "The connection to an agent ended. It is made again; the operation continues meanwhile.",
	"asking for another attempt to create the pod":                                                        "The StatefulSet waits before it tries to create the pod again. `problem` says why it failed, and the Workspace too.",
	"pods with another agent do not become ready, so the other pods of their namespace are not replaced":  "The controller has another agent than before, and the first pods of the namespace that got it did not become ready within 15 minutes. Their Workspaces say why, for example that the image of the agent cannot be pulled. The other pods go on with the agent that they have. The controller goes on when a pod with the new agent is ready.",
	"scaling down to no pod: there is nothing to do":                                                      "The Workspace was idle, see `idleTimeout`. The next Update starts the pod again.",
	"shortening the time that the pod has to end: its agent has nothing to do and did not get the signal": "A program of yours is the first process of the container and does not pass on signals. Nothing to do.",
	"cannot rotate the log of an agent":                                                                   "Process runtime: a log grows. Look at the volume of the controller.",
	"cannot list the directories of workspaces":                                                           "Process runtime: look at the volume of the controller.",
	"cannot remove a workspace that is gone":                                                              "Process runtime: the directory of a deleted Workspace is left. It is removed when the controller starts again.",
	"cannot remove a workspace":                                                                           "Process runtime: the directory of a deleted Workspace is left. It is tried again.",
	"the pod cannot be started with an image volume, so it gets an init container":                        "A node or a policy of the cluster does not admit the image of the agent as a volume; new pods of its namespace get the init container for an hour.",
	"removing a workspace that is gone":                                                                   "Process runtime: the Workspace was deleted while no controller ran.",
	"cannot end an agent, leaving it alone":                                                               "Process runtime: the controller stops before an agent did. The next controller finds it.",
	"an operation goes on without the controller":                                                         "Process runtime: the controller stops, and the operation continues. The next controller finds it.",
	"found the agent of an earlier controller":                                                            "Process runtime: its operation continues.",
	"agent is ready": "Process runtime: an agent was started.",
	"agent …":        "Process runtime: an agent ended, and how.",
	"agent failed":   "Process runtime: an agent cannot be started or ended early; `problem` says why, and the Workspace too. It is started again after `delay`.",

	"agent serves":           "The agent is ready; `pulumi` is the version of the CLI.",
	"agent ends":             "The agent was told to end, and has ended.",
	"operation started":      "An operation of this kind starts on the stack.",
	"operation ended":        "The operation has this result, which the Update will have.",
	"operation is cancelled": "A user or the controller cancelled the operation, or the agent ends. Pulumi is interrupted and releases its lock.",
	"operation panicked":     "A defect of the agent. The Update fails. Please report the value of `stack`.",
	"call refused":           "A caller is not allowed to call the agent; `reason` says why. The controller's own calls are refused only when its ServiceAccount or its certificate changed.",
	"symbolic links of the source are left out": "The artifact has links, which the program does without. An operation that needs one of them fails and names it.",
	"source replaced":               "The program was unpacked.",
	"creating the stack":            "The state backend has no such stack yet.",
	"changing the secrets provider": "The stack's secrets are encrypted with the new one from now on.",
	"…":                             "What Pulumi printed: `stream` is `stdout` or `stderr`.",
	"a lock may be left":            "An operation was killed and the agent could not find out whether its lock is left. The next operation will show: it waits for the lock, or fails with its holder.",
	"the lock was not released":     "The next operation waits for the lock, and the Stack says how to remove it.",
	"temporary files of earlier processes are left":                                          "They take space until the pod is replaced.",
	"releasing the lock of a pulumi process that was killed":                                 "The process had this pid, and the agent has seen that it is gone.",
	"ended processes that pulumi left behind":                                                "Plugins or programs were still running after Pulumi had ended.",
	"the secrets provider was changed outside of the agent":                                  "Somebody ran `pulumi stack change-secrets-provider`. The operation begins again with that provider.",
	"environment variables are reserved and were left out":                                   "Rename these variables: the agent sets them itself.",
	"cannot use the shared plugins":                                                          "Plugins are downloaded instead. Look at the volume, see [provider plugins](plugins.md).",
	"the logins of the operation were not removed":                                           "The token of a state backend is left in the pod, until it ends.",
	"the stack was not created, perhaps because it exists":                                   "Usually nothing to do: the operation uses the stack.",
	"the next agent has to run pulumi for its version":                                       "The version could not be noted on the disk of the workspace, and `pulumi version` runs once more.",
	"the stack is not selected, for commands by hand":                                        "After `kubectl exec`, use `pulumi --stack`.",
	"there is no link to the stack's configuration, for commands by hand: use --config-file": "After `kubectl exec`, use `--config-file` with this file.",
	"the workspace has files of its own, which the program does not see":                     "An init container wrote to `/share/workspace`, and the Stack has a source. After `kubectl exec`, go to the directory `program`.",
	"the workspace does not lead to the program":                                             "After `kubectl exec`, go to the directory `program`.",
	"dependencies of the earlier source are lost":                                            "They are installed again.",
	"cannot remove the earlier source":                                                       "It takes space in the volume `share` until the pod is replaced. Usually, an init container wrote files into `/share/source` as another user.",
	"cannot remove what a push left behind":                                                  "A file is left in the volume of the workspace.",
	"cannot record the state":                                                                "The volume of the workspace cannot be written, perhaps because it is full. If the pod ends now, the Update counts as interrupted.",
	"cannot record the result; it is kept in memory":                                         "The volume of the workspace cannot be written, perhaps because it is full. The controller reads the result from memory.",
	"cannot remove an operation":                                                             "A record is left in the volume of the workspace.",
	"lost the record of an operation":                                                        "A record in the volume of the workspace is damaged. The Update counts as interrupted.",
	"lost the result of an operation":                                                        "A record in the volume of the workspace is damaged. The Update counts as interrupted.",
	"a token that was accepted before is accepted on":                                        "The API server does not answer whether the caller may still call. The token is accepted for some seconds more, and not after its end.",
	"the key pair cannot be read again; the last one is used":                                "The Secret of the agent is not mounted as it should be.",
	"the API server is asked who calls the agent and whether that user may":                  "The agent's ServiceAccount has the rights for that (`system:auth-delegator`).",
	"the agent's ServiceAccount may not ask the API server about callers: tokens are verified with its public keys and only the controller is accepted; the ClusterRole system:auth-delegator would let the agent ask": "Usual, and nothing to do: the controller can call the agent.",
}
