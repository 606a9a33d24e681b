"""What a user's program imports: the clients, what they are given, and what they give back."""

from headgate.client.consumer import Consumer
from headgate.client.outgoing import Document, Outcome, OutgoingEvent, Receipt
from headgate.client.pending import ProducerOptions
from headgate.client.producer import Producer
from headgate.client.subscriber import Event, Item, Left, Resync, Subscriber
from headgate.client.sync_consumer import ConsumerOptions, SyncConsumer
from headgate.client.sync_producer import SyncProducer
from headgate.client.sync_subscriber import Question, SubscriberOptions, SyncSubscriber
from headgate.decide.following.conversation import Acks
from headgate.decide.following.subscription import Conditions
from headgate.model.client_messages import Joined, Subscribed
from headgate.model.event import Op
from headgate.model.subscription import Priority

__all__ = [
    "Acks",
    "Conditions",
    "Consumer",
    "ConsumerOptions",
    "Document",
    "Event",
    "Item",
    "Joined",
    "Left",
    "Op",
    "Outcome",
    "OutgoingEvent",
    "Priority",
    "Producer",
    "ProducerOptions",
    "Question",
    "Receipt",
    "Resync",
    "Subscribed",
    "Subscriber",
    "SubscriberOptions",
    "SyncConsumer",
    "SyncProducer",
    "SyncSubscriber",
]
