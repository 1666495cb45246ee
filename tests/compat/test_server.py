"""`tf.train.Server` and `ClusterSpec`: what sessions of one process share."""

from __future__ import annotations

from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import blocked, refused


def queue(**options: Any) -> Any:
    return tf.FIFOQueue(10, "int32", (), **options)


class TestServer:
    def test_sessions_share_queues_by_name(self) -> None:
        server = tf.train.Server.create_local_server()
        with tf.Graph().as_default():
            first = queue(shared_name="q")
            with tf.Session(server.target) as sess:
                sess.run(first.enqueue_many([[1, 2]]))
        with tf.Graph().as_default():
            second = queue(shared_name="q", name="other")
            with tf.Session(server.target) as one, tf.Session(server.target) as two:
                assert one.run(second.dequeue()) == 1
                assert two.run(second.dequeue()) == 2

    def test_one_name_in_two_containers_means_two(self) -> None:
        server = tf.train.Server.create_local_server()
        plain = queue(shared_name="q")
        with tf.container("other"):
            other = queue(shared_name="q")
            again = queue(shared_name="q")
        assert plain.queue_ref.op.get_attr("container") == b""
        assert other.queue_ref.op.get_attr("container") == b"other"
        with tf.Session(server.target) as sess:
            sess.run(other.enqueue(1))
            assert sess.run([plain.size(), other.size(), again.size()]) == [0, 1, 1]

    def test_a_container_can_be_released_alone(self) -> None:
        server = tf.train.Server.create_local_server()
        with tf.container("first"):
            first = tf.Variable(1, name="first")
        second, kept = tf.Variable(2, name="second"), queue(shared_name="q")
        with tf.Session(server.target) as sess:
            sess.run([first.initializer, second.initializer, kept.enqueue(3)])
        tf.Session.reset(server.target, ["first"])
        with tf.Session(server.target) as sess:
            assert sess.run(tf.report_uninitialized_variables()).tolist() == [b"first"]
            assert sess.run([second, kept.size()]) == [2, 1]
        tf.Session.reset(server.target, ["localhost"])  # what the default one is called
        with tf.Session(server.target) as sess:
            assert sess.run(kept.size()) == 0
        with tf.Session(server.target) as sess:
            sess.run([first.initializer, second.initializer])
        tf.Session.reset(server.target)
        with tf.Session(server.target) as sess:
            assert len(sess.run(tf.report_uninitialized_variables())) == 2

    @pytest.mark.parametrize("containers", [None, ["other"]])
    def test_a_reset_ends_its_sessions(self, containers: Any) -> None:
        server = tf.train.Server.create_local_server()
        elsewhere = tf.train.Server.create_local_server()
        shared, own = queue(shared_name="q"), queue()
        taken = shared.dequeue()
        first, second = tf.Session(server.target), tf.Session(server.target)
        apart, direct = tf.Session(elsewhere.target), tf.Session()
        call = second.make_callable(own.size())
        steps = [blocked(sess, shared, taken) for sess in (first, second)]
        steps += [blocked(sess, own, own.dequeue()) for sess in (first, second)]
        steps += [blocked(first, own, [taken, own.dequeue()])]
        tf.Session.reset(server.target, containers)
        for step in steps:
            refused(tf.errors.CancelledError, "Dequeue operation was cancelled", step.result)
        for sess in (first, second):
            with pytest.raises(tf.errors.AbortedError, match="reset"):
                sess.run(shared.size())
        refused(tf.errors.AbortedError, "", call)
        assert not first.closed
        first.close()
        refused(RuntimeError, "closed Session", lambda: first.run(shared.size()))
        assert apart.run(shared.size()) == direct.run(own.size()) == 0
        with tf.Session(server.target) as later:
            later.run(shared.enqueue(1))
            assert later.run(taken) == 1
        for sess in (second, apart, direct):
            sess.close()

    def test_a_reset_without_a_target_ends_sessions_without_a_server(self) -> None:
        own = queue()
        server = tf.train.Server.create_local_server()
        with tf.Session() as direct, tf.Session(server.target) as served:
            step = blocked(direct, own, own.dequeue())
            tf.Session.reset("")
            refused(tf.errors.CancelledError, "Dequeue operation was cancelled", step.result)
            with pytest.raises(tf.errors.CancelledError, match="Session has been closed"):
                direct.run(own.size())
            assert served.run(own.size()) == 0
        with tf.Session() as later:
            assert later.run(own.size()) == 0

    def test_a_monitored_session_goes_on_after_a_reset(self) -> None:
        server = tf.train.Server.create_local_server()
        step = tf.train.get_or_create_global_step()
        more = tf.assign_add(step, 1)
        with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(master=server.target)) as sess:
            assert [sess.run(more), sess.run(more)] == [1, 2]
            tf.Session.reset(server.target)
            assert sess.run(more) == 1

    def test_a_container_is_left_with_its_block(self) -> None:
        with tf.container("outer") as name, tf.container("inner"):
            inner = queue()
        assert name == "outer"
        assert inner.queue_ref.op.get_attr("container") == b"inner"
        assert queue().queue_ref.op.get_attr("container") == b""

    def test_what_does_not_fit_is_refused(self) -> None:
        server = tf.train.Server.create_local_server()
        one, two = queue(shared_name="q"), tf.FIFOQueue(9, "int32", (), shared_name="q")
        with tf.Session(server.target) as sess:
            sess.run(one.size())
        with (
            tf.Session(server.target) as sess,
            pytest.raises(tf.errors.InvalidArgumentError, match="has capacity 10 but requested"),
        ):
            sess.run(two.size())

    def test_it_is_found_when_it_has_started(self) -> None:
        server = tf.train.Server.create_local_server(start=False)
        refused(tf.errors.NotFoundError, "", tf.Session, server.target)
        server.start()
        tf.Session(server.target).close()

    def test_its_place_in_a_cluster(self) -> None:
        cluster = tf.train.ClusterSpec({"ps": ["here:1"], "worker": ["here:2", "here:3"]})
        server = tf.train.Server(cluster, job_name="worker", task_index=1)
        assert server.target == "grpc://here:3"
        assert server.server_def.job_name == "worker"
        assert tf.train.Server(server.server_def, start=False).target == server.target
        assert tf.train.Server({"ps": ["there:7"]}).target == "grpc://there:7"
        for job in (None, "chief", "worker"):
            refused(ValueError, "expected one of", tf.train.Server, cluster, job_name=job)

    def test_servers_share_nothing(self) -> None:
        shared = queue(shared_name="q")
        targets = [tf.train.Server.create_local_server().target for _ in range(2)]
        assert targets[0] != targets[1]
        with tf.Session(targets[0]) as one, tf.Session(targets[1]) as two:
            one.run(shared.enqueue(1))
            assert two.run(shared.size()) == 0

    def test_queues_without_a_shared_name_are_each_sessions_own(self) -> None:
        server = tf.train.Server.create_local_server()
        own = queue()
        with tf.Session(server.target) as one, tf.Session(server.target) as two:
            one.run(own.enqueue(1))
            assert (one.run(own.size()), two.run(own.size())) == (1, 0)
        with tf.Session(server.target) as sess:
            assert sess.run(own.size()) == 0


class TestClusterSpec:
    def test_lists_and_dicts(self) -> None:
        spec = tf.train.ClusterSpec({"a": ["x:1", "x:2"], "b": {0: "y:0", 3: "y:3"}})
        assert spec.as_dict() == {"a": ["x:1", "x:2"], "b": {0: "y:0", 3: "y:3"}}
        assert spec.jobs == ["a", "b"]
        assert (spec.num_tasks("a"), spec.task_indices("b")) == (2, [0, 3])
        assert spec.task_address("b", 3) == "y:3"
        assert spec.job_tasks("b") == ["y:0", None, None, "y:3"]
        assert spec
        assert not tf.train.ClusterSpec({})
        assert tf.train.ClusterSpec(spec) == spec
        assert spec != tf.train.ClusterSpec({})

    def test_what_is_not_there(self) -> None:
        spec = tf.train.ClusterSpec({"a": ["x:1"]})
        refused(ValueError, "No such job in cluster: 'b'", spec.num_tasks, "b")
        refused(ValueError, "No task with index 4 in job 'a'", spec.task_address, "a", 4)
        for bad in (3, ["x:1"], {"a": "x:1"}):
            refused(TypeError, "", tf.train.ClusterSpec, bad)


class TestDevices:
    CLUSTER = {"ps": ["a:1", "b:2"], "worker": {1: "c:1", 3: "d:2"}}  # noqa: RUF012

    def test_a_cluster_as_plain_data_and_back(self) -> None:
        made = tf.train.ClusterSpec(self.CLUSTER)
        plain = made.as_cluster_def()
        assert [(job.name, job.tasks) for job in plain.job] == [
            ("ps", {0: "a:1", 1: "b:2"}),
            ("worker", {1: "c:1", 3: "d:2"}),
        ]
        assert tf.train.ClusterSpec(plain) == made
        given = tf.train.ServerDef(cluster=plain, job_name="ps", task_index=1, protocol="grpc")
        assert tf.train.Server(given).target == "grpc://b:2"
        assert tf.train.ClusterDef(job=[tf.train.JobDef(name="w")]).job[0].tasks == {}

    def test_a_setter_for_replicas_goes_into_a_device(self) -> None:
        setter = tf.train.replica_device_setter
        with tf.device(setter(cluster=tf.train.ClusterSpec(self.CLUSTER))), tf.Session() as sess:
            value = tf.Variable(3)
            sess.run(value.initializer)
            assert sess.run(value) == 3
        assert setter(2, worker_device="/job:worker/task:0")(value.op) == "/job:worker/task:0"
        assert setter() is None
        assert setter(cluster={"worker": ["c:1"]}) is None
        refused(TypeError, "`cluster` must be a dictionary", setter, cluster=5)
        refused(TypeError, "ps_strategy must be callable", setter, 2, ps_strategy=5)
